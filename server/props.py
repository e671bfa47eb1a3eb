"""/props: what llama-server's clients ask a server about itself and its default model."""

from __future__ import annotations

from dataclasses import asdict

from gguflow import __version__

from .exchange import Exchange


async def props(exchange: Exchange) -> None:
    """The default model's sizes, template and settings, where a request gives none of its own."""
    service = exchange.service
    async with service.manager.use(None) as loaded:
        tokenizer, spec = loaded.tokenizer, loaded.spec
        settings = asdict(service.config.defaults)
        ends = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
        await exchange.json(
            {
                "model_alias": spec.name, "model_path": spec.path.name,
                "build_info": f"gguflow {__version__}",
                "total_slots": loaded.model.options.n_seqs,
                "default_generation_settings": {
                    "n_ctx": loaded.n_ctx,
                    "params": {**settings, "n_predict": service.config.max_output,
                               "reasoning_format": service.config.reasoning_format},
                },
                "modalities": {"vision": False, "audio": False},
                "chat_template": loaded.template.source,
                "chat_template_caps": {"thinks": loaded.form.thinks, "calls": loaded.tools.name},
                **{k: "" if i is None else tokenizer.token_text(i) for k, i in ends.items()},
            }
        )  # fmt: skip
