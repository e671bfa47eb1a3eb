"""Every option of llama-completion is taken, or refused by its name: none is unknown."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.cli import chat, generate, serve
from gguflow.cli.draft_options import draft_changes
from gguflow.cli.errors import UsageError
from gguflow.cli.load import open_source
from gguflow.cli.options import placement
from gguflow.cli.parser import Parser
from gguflow.cli.sampling_options import sampler_settings
from gguflow.engine import hub
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.sampling import SamplerSettings

# What its help lists (build of autumn 2026), and the value to try them with.
OPTIONS = """\
--usage --version --license -cl --cache-list --completion-bash --verbose-prompt =
--swa-full --perf --no-perf -e --escape --no-escape -kvo --kv-offload -nkvo =
--no-kv-offload --repack -nr --no-repack --no-host --mlock --mmap --no-mmap -dio =
--direct-io -ndio --no-direct-io --list-devices -cmoe --cpu-moe --check-tensors =
--op-offload --no-op-offload --log-disable -v --verbose --log-verbose --offline =
--log-prefix --log-timestamps --ignore-eos -bs --backend-sampling --display-prompt =
--no-display-prompt -co --context-shift --no-context-shift --prompt-cache-all =
--prompt-cache-ro -sp --special -cnv --conversation -no-cnv --no-conversation -st =
--single-turn -i --interactive -if --interactive-first -mli --multiline-input =
--in-prefix-bos --warmup --no-warmup --jinja --no-jinja --skip-chat-parsing =
--no-skip-chat-parsing --simple-io =
-t -tb --threads-batch --cpu-strict --prio --cpu-strict-batch --prio-batch = 1
--poll-batch -np --parallel -s --top-nsigma --top-n-sigma --dynatemp-exp -gan = 1
--grp-attn-n -gaw --grp-attn-w -td --threads-draft -tbd --threads-batch-draft = 1
--threads -n --dry-penalty-last-n = -1
-dev = CUDA0
-C = ff
--cpu-mask -Cb --cpu-mask-batch = f
-Cr --cpu-range -Crb --cpu-range-batch = 0-1
--poll = 50
-c --ctx-size --device -ngl -mg --main-gpu = 0
--predict = -2
--n-predict --draft = 4
-b --batch-size -ub --ubatch-size = 64
--keep --top-k --mirostat-ent -ptc --print-token-count --reasoning-budget = 5
-fa -fit --log-colors --color -rea = on
--flash-attn --n-gpu-layers --reasoning-format = auto
-p --prompt -dr --docker-repo -hfv --hf-repo-v -hffv --hf-file-v --log-file = x
--grammar --grammar-file -jf --json-schema-file -sysf --system-prompt-file = x
--prompt-cache -r --reverse-prompt --in-prefix --in-suffix = x
--reasoning-budget-message --chat-template-file -md --model-draft -devd = x
--device-draft -hfrv -mm --mmproj --image --audio --rpc = x
-f --file -bf --binary-file = /etc/hostname
--rope-scaling -sm --dry-sequence-breaker = none
--rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor = 2
--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -ncmoe --n-cpu-moe = 2
--dry-allowed-length --mirostat --draft-min --draft-n-min = 2
-ctk --cache-type-k -ctv = q8_0
--cache-type-v -ctkd --cache-type-k-draft -ctvd --cache-type-v-draft = f16
-dt --defrag-thold --xtc-threshold --presence-penalty --frequency-penalty = 0.1
--mirostat-lr = 0.1
-lm --load-mode = mmap
--numa = isolate
-ot = x=cpu
--override-tensor = x=CPU
--gpu-layers = all
--split-mode = row
-ts --tensor-split = 3,1
--fit --reasoning = off
-fitt --fit-target = 1024
-fitc --fit-ctx = 4096
--override-kv = a=int:1
--lora = a.gguf
--lora-scaled = a.gguf:2
--control-vector -m --model = a
--control-vector-scaled = a:2
--control-vector-layer-range = 1 2
-mu --model-url = http://x
-hf -hfr --hf-repo -hfd -hfrd --hf-repo-draft = a/b
-hff --hf-file = x.gguf
-hft --hf-token = tok
-lv --verbosity --log-verbosity = 3
--samplers = top_k
--seed = 4294967295
--sampler-seq --sampling-seq = k
--temp --temperature --top-p --min-p --xtc-probability --adaptive-target = 0.5
--dynatemp-range --draft-p-min = 0.5
--typical --typical-p --adaptive-decay = 0.9
--repeat-last-n = 10
--repeat-penalty = 1.1
--dry-multiplier = 0.8
--dry-base = 1.75
-l = 15-1
--logit-bias = 15+1
-j --json-schema = {}
-sys --system-prompt = hi
--chat-template = chatml
--chat-template-kwargs = {"a":1}
--draft-max --draft-n = 16
-ngld --gpu-layers-draft --n-gpu-layers-draft = 99
-cd --ctx-size-draft = 100
--log-jsonl --no-log-jsonl --no-log-prefix --no-log-timestamps --mmproj-auto --no-mmproj =
--no-mmproj-auto --mmproj-offload --no-mmproj-offload --reasoning-preserve =
--no-reasoning-preserve --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-default =
--spec-draft-backend-sampling --no-spec-draft-backend-sampling =
--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default =
--vision-gemma-12b-default =
-mmu --mmproj-url -mmdev --mmproj-device --video --video-ffmpeg-dir --log-prompts-dir = x
--spec-draft-model --spec-draft-hf --spec-draft-device --reasoning-effort = a/b
--image-min-tokens --image-max-tokens --video-fps --video-timestamp-interval = 7
-ncffn --n-cpu-ffn --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft = 3
--spec-draft-threads --spec-draft-threads-batch --spec-draft-prio --prio-draft = 1
--spec-draft-prio-batch --prio-batch-draft --spec-draft-poll --poll-draft = 1
--spec-draft-poll-batch --poll-batch-draft --spec-draft-cpu-strict --cpu-strict-draft = 1
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft = 1
--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-mask-batch -Cbd = ff
--cpu-mask-batch-draft = ff
--spec-draft-cpu-range -Crd --cpu-range-draft = 0-1
-lzm --lazy-mode = on
--spec-draft-type-k --spec-draft-type-v = q8_0
--spec-draft-override-tensor -otd --override-tensor-draft = x=cpu
--spec-draft-n-max --spec-draft-n-min --spec-draft-ngl --spec-synth-len --spec-synth-rates = 5
--spec-draft-p-split --draft-p-split --spec-draft-p-min = 0.3
--spec-type = ngram-mod
--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match = 24
--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits = 4
--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits = 4
--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits = 4
"""
# What only chats have there.
TALKS = """\
--show-timings --no-show-timings =
-ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram = 8
--server-base -o --output --output-file = x
"""


def cases(lines: str) -> list[tuple[str, list[str]]]:
    return [
        (flag, value.split())
        for flags, _, value in (line.partition(" =") for line in lines.splitlines())
        for flag in flags.split()
    ]


CASES = cases(OPTIONS)


def parsed(module: ModuleType, words: list[str]) -> dict[str, object]:
    parser = Parser("gguflow", "")
    module.add_arguments(parser)
    return vars(parser.parse_args(words))


def test_the_list_is_whole() -> None:
    assert len(CASES) == len({flag for flag, _ in CASES}) > 300


@pytest.mark.parametrize("module", [generate, chat], ids=["generate", "chat"])
def test_none_is_unknown(module: ModuleType) -> None:
    plain = parsed(module, [])
    for flag, value in CASES + cases(TALKS if module is chat else ""):
        try:
            found = parsed(module, [flag, *value])
        except UsageError as e:
            message = str(e)
            assert message.startswith(f"{flag}: ") and "expected" not in message, message
            continue
        changed = {k for k in plain if found[k] != plain[k]}
        assert changed <= {"notes"} or len(changed) == 1, (flag, changed)


SERVER = """
--jinja -cb --cont-batching --metrics --webui --embedding --embeddings --cache-prompt --mmap -fa =
--slots --no-slots --no-cache-prompt --mlock --no-mmap --props --rerank --reranking =
-nocb --no-cont-batching -kvu --kv-unified --no-prefill-assistant --no-webui =
--cache-reuse -cram --cache-ram -ctxcp --ctx-checkpoints --swa-checkpoints --models-max = 64
-sps --slot-prompt-similarity --threads-http --numa --poll -lv --reasoning-budget = 1
--ssl-key-file --ssl-cert-file --path --api-prefix --slot-save-path --models-dir --log-file = x
--pooling = mean
--reasoning-format --fit = auto
--chat-template-kwargs = {"a":1}
--chat-template-file -hf -hfr --hf-repo -hft --hf-token -m --model -a --alias --host = a/b
-np --parallel --port -to --timeout -ub -b -c -ngl -n = 8
--offline --no-jinja =
--kv-unified-per-slot --keep -cms --checkpoint-min-step --embd-normalize --sse-ping-interval = 2
--mtmd-batch-max-tokens --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits = 2
-no-kvu --no-kv-unified --cache-idle-slots --no-cache-idle-slots --context-shift --no-perf =
--no-escape -sp --special --spm-infill --mmproj-auto --no-mmproj -v --verbose --log-verbose =
--reuse-port --cors-credentials --no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy =
--no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent -no-ag --no-agent --ui --no-ui =
--models-autoload --no-models-autoload --skip-chat-parsing --reasoning-preserve --log-disable =
--spec-default --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default =
--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default =
--gpt-oss-20b-default --log-jsonl --no-log-prefix -cmoed --no-reasoning-preserve =
-lcs --lookup-cache-static -lcd --lookup-cache-dynamic -r --reverse-prompt --grammar-file = x
--grammar -j --json-schema -jf --json-schema-file -mu --model-url -hff --hf-file --tags = x
--cors-origins --cors-methods --cors-headers --ui-config --webui-config --ui-config-file = x
--webui-config-file --tools --tools-runtime --mcp-servers-config --mcp-servers-json = x
--media-path --models-preset --reasoning-effort --reasoning-budget-message --log-prompts-dir = x
-rea --reasoning = off
--spec-draft-model -otd --spec-draft-override-tensor = a=b
"""


def test_the_server_knows_llama_server_s() -> None:
    plain = parsed(serve, [])
    for line in SERVER.strip().replace("-fa -e\n", "-fa -e =\n").splitlines():
        flags, _, value = line.partition(" =")
        for flag in flags.split():
            try:
                found = parsed(serve, [flag, *value.split()])
            except UsageError as e:
                assert str(e).startswith(f"{flag}: ") and "expected" not in str(e), e
                continue
            assert len({k for k in plain if found[k] != plain[k]}) <= 1, flag
    assert parsed(serve, ["--slots"])["notes"] and not parsed(serve, ["--metrics"])["notes"]


def test_variables_of_templates_add_up() -> None:
    words = ["--chat-template-kwargs", '{"a": 1, "reasoning_effort": "high"}']
    words += ["--reasoning-effort", "low", "--no-reasoning-preserve"]
    expected = {"a": 1, "reasoning_effort": "low", "preserve_reasoning": False}
    for module in (chat, serve):
        assert parsed(module, words)["chat_template_kwargs"] == expected
        assert parsed(module, ["--reasoning-effort", "default"])["chat_template_kwargs"] == {}
    off = parsed(serve, [*words, "-rea", "off"])["chat_template_kwargs"]
    assert off == {**expected, "enable_thinking": False}


def test_a_draft_has_options_of_its_own() -> None:
    words = ["-md", "a", "-otd", "x=cpu,y=cuda", "-ncmoed", "2", "-ctkd", "q8_0"]
    words += ["--spec-draft-type-v", "bf16"]
    changes = draft_changes(Namespace(**parsed(generate, words)))
    assert changes.pop("overrides") == (("x", "cpu"), ("y", "cuda"))
    types = {name: t.name for name, t in changes.items() if name.endswith("_type")}
    assert types == {"k_type": "q8_0", "v_type": "bf16"} and changes["cpu_experts"] == 2
    assert draft_changes(Namespace(**parsed(generate, []))) == {}


def test_feed_forward_parts_stay_on_the_processor() -> None:
    args = Namespace(**parsed(generate, ["-ot", "a=b", "-ncffn", "2"]))
    (first, (pattern, backend)) = placement(args)["overrides"]
    assert (first, backend) == (("a", "b"), "cpu")
    found = [n for n in ("blk.0.ffn_up.weight", "blk.1.ffn.swiglu", "blk.2.ffn_up.weight",
                         "blk.0.ffn_norm.weight", "blk.0.ffn_up_exps.weight", "blk.0.attn.q")
             if re.search(pattern, n)]  # fmt: skip
    assert found == ["blk.0.ffn_up.weight", "blk.1.ffn.swiglu"]


def test_the_server_s_models_come_from_the_hub_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def fetch(name: str, file: str | None, token: str | None, offline: bool) -> Path:
        asked.append((name, file, token, offline))
        return write_tiny(tmp_path / f"{len(asked)}.gguf")

    monkeypatch.setattr(hub, "fetch", fetch)
    first = write_tiny(tmp_path / "first.gguf")
    words = ["-m", str(first), "-hf", "a/b:Q8_0", "-hf", "c/d", "-hft", "t", "-c", "64"]
    specs = serve.model_specs(Namespace(**parsed(serve, words)))
    assert [s.name for s in specs] == ["first", "1", "2"]
    assert asked == [("a/b:Q8_0", None, "t", False), ("c/d", None, "t", False)]


def test_the_same_by_every_name() -> None:
    def same(*ways: str) -> None:
        first, *others = (parsed(generate, way.split()) for way in ways)
        assert all(first == other for other in others) and first != parsed(generate, [])

    same("-ngld 3", "--gpu-layers-draft 3", "--n-gpu-layers-draft 3")
    same("--draft 4", "--draft-n 4", "--draft-max 4")
    same("-mg 1", "--device 1", "-dev CUDA1", "-dev cuda:1")
    same("-v", "--log-verbose")
    same("--lora-scaled a:2,b:0.5", "--lora a=2 --lora b=0.5")
    same("-hfd u/r:Q8_0", "--hf-repo-draft u/r:Q8_0", "--spec-draft-hf u/r:Q8_0")
    same("-md a", "--spec-draft-model a", "--spec_draft_model=a")
    same("-ngl auto", "-ngl -1", "--n_gpu_layers -1")
    same("-ngl all", "-ngl -2")
    same("-lv 5", "-v")
    same("-lv 0", "-q", "--log-disable")
    same("--lookup", "--spec-default", "--spec-type draft-simple,ngram-mod")
    assert parsed(generate, ["-t", "-1", "-tb", "-1"]) == parsed(generate, [])


def test_keys_take_the_place_of_the_file_s(tmp_path: Path) -> None:
    yarn = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0,
            ".rope.scaling.original_context_length": 64, ".rope.scaling.yarn_beta_fast": 16.0,
            ".rope.freq_base": 500.0}  # fmt: skip
    plain = write_tiny(tmp_path / "plain.gguf", gain=2.0)
    expected = write_tiny(tmp_path / "yarn.gguf", gain=2.0, keys=yarn)
    words = ["--rope-scaling", "yarn", "--rope-freq-scale", "0.25", "--yarn-orig-ctx", "64"]
    words += ["--yarn-beta-fast", "16"]
    words += ["--override-kv", "llama.rope.freq_base=float:500"]
    ids = [3 + 7 * i % 90 for i in range(60)]

    def logits(path: Path, words: list[str]) -> np.ndarray:
        source = open_source(Namespace(**parsed(generate, ["-m", str(path), *words]), random=None))
        model = Model(source, Options(n_threads=1))
        model.load_weights()
        return model.logits(ids)

    changed = logits(plain, words)
    np.testing.assert_array_equal(changed, logits(expected, []))
    assert np.abs(changed - logits(plain, [])).max() > 0.1
    with pytest.raises(UsageError, match="expected KEY=TYPE:VALUE"):
        parsed(generate, ["--override-kv", "a=number:1"])


def test_samplers_have_its_defaults() -> None:
    expected = SamplerSettings(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, top_n_sigma=-1, typical_p=1,
        xtc_probability=0, xtc_threshold=0.1, repeat_last_n=64, repeat_penalty=1,
        presence_penalty=0, frequency_penalty=0, dry_multiplier=0, dry_base=1.75,
        dry_allowed_length=2, dry_penalty_last_n=-1, dry_sequence_breakers=("\n", ":", '"', "*"),
        dynatemp_range=0, dynatemp_exponent=1, mirostat=0, mirostat_eta=0.1, mirostat_tau=5,
        samplers=("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
                  "temperature"),
    )  # fmt: skip
    assert SamplerSettings() == expected
    assert sampler_settings(Namespace(**parsed(generate, []))) == expected
