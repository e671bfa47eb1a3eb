"""An answer that is JSON of a schema: a mapping, or a class such as pydantic's."""

import json

from pydantic import BaseModel, ConfigDict, Field

import gguflow

model = gguflow.Model.load(n_ctx=512)
schema = {
    "type": "object",
    "properties": {"mood": {"enum": ["glad", "sad"]}, "score": {"enum": [1, 2, 3]}},
    "required": ["mood", "score"],
    "additionalProperties": False,
}
text = "".join(model.generate("Tom had a cake. As JSON: ", json_schema=schema, seed=1))
print(json.loads(text)["mood"])


class Cake(BaseModel):
    model_config = ConfigDict(extra="forbid")
    slices: int = Field(ge=1, le=12)


messages = [{"role": "user", "content": "How many slices has the cake?"}]
answer = "".join(model.chat(messages, json_schema=Cake, seed=1))
print(Cake.model_validate_json(answer).slices)
