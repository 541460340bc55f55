"""Chat templates: a checkpoint's own program that writes messages as one text, run in a sandbox."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from opdock.errors import CheckpointError
from opdock.nn.extras import need


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return the messages as the model was trained to read them.

    Args:
        template: Jinja source from a checkpoint; it can reach nothing but what is given here.
        messages: each with ``role`` and ``content``.
        add_generation_prompt: end with the header of the answer.
        variables: more names for the template, such as ``bos_token``.

    Raises: CheckpointError if the template is broken or refuses the messages.
    """
    jinja2 = need("jinja2", "A chat template")
    sandbox = need("jinja2.sandbox", "A chat template")

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: dt.datetime.now().astimezone().strftime(form)
    try:
        text: str = environment.from_string(template).render(
            messages=list(messages),
            add_generation_prompt=add_generation_prompt,
            # templates ask whether these are None
            **{"tools": None, "documents": None, **(variables or {})},
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as err:
        raise CheckpointError(
            "The model's chat template cannot write these messages.",
            why=f"{type(err).__name__}: {err}",
            remedy="give the text without the template: opdock generate MODEL --no-chat -p TEXT",
        ) from err
    return text


def _to_json(value: object, *args: Any, **options: Any) -> str:
    # jinja's own filter escapes for HTML, which no model was trained on
    options = {**dict(zip(("ensure_ascii", "indent"), args, strict=False)), **options}
    return json.dumps(value, **{"ensure_ascii": False, **options})
