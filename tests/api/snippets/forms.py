"""Texts of a form: a grammar, a regular expression, one of some texts."""

import gguflow

model = gguflow.Model.load(n_ctx=256)
print(*model.generate("The cat is", choices=[" happy", " sad"]), sep="")
print(*model.generate("Tom's number is ", regex="[0-9]{3}-[0-9]{2}"), sep="")
print(*model.generate("They saw ", grammar='root ::= ("a" | "two") " dog" "s"?'), sep="")
try:
    model.generate("Once", regex="(")
except gguflow.ConstraintRefused as e:
    print(e)
