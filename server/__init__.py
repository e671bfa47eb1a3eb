"""`gguflow serve`: the OpenAI API over the engine of many sequences, and a page that shows it live.

HTTP and its bounds are in `http`, `limits` and `auth`; what may be asked in `schema`; models come
and go in `manager`; a request becomes tokens in `answer`; what runs is watched by `monitor`.
"""
