"""Nothing that is read is executed, and no secret is written."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from relax_core.orchestration.checkpoints import MANIFEST, damage_of
from tests.conftest import EXAMPLES, RUN


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.fixture
def evil(tmp_path):
    """A pickle, and the file that is there once it has run."""
    return pickle.dumps(Evil(tmp_path / "ran")), tmp_path / "ran"


def test_the_pickle_would_run(evil):
    payload, ran = evil
    pickle.loads(payload)
    assert ran.exists()


@pytest.mark.parametrize("name", ["loop.pt", "trainer.pt"])
def test_a_pickle_in_a_checkpoint_is_refused(relax, run_file, tmp_path, evil, name):
    payload, ran = evil
    path = run_file(RUN)
    assert relax("train", path, "--output.dir", "run").code == 0
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000002"
    (checkpoint / name).write_bytes(payload)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    del manifest["files"][name]
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    assert damage_of(checkpoint) == ""
    result = relax("train", path, "--num-rollout", 3, "--resume", "run")
    assert result.code == 3
    assert "error: --resume: checkpoint 'run/checkpoints/step_000002' cannot be read: " in result.err
    assert not ran.exists()


def model_directory(tmp_path, write):
    """A builder of the tiny model whose directory `write` then changes."""
    source = f"""
    import sys
    from pathlib import Path
    sys.path.insert(0, {str(EXAMPLES)!r})
    from tiny_model import byte_tokenizer, random_model

    def build(directory):
        byte_tokenizer().save_pretrained(directory)
        random_model().save_pretrained(directory)
        {write}
    """
    lines = [line[4:] for line in source.splitlines()]
    (tmp_path / "builder.py").write_text("\n".join(lines))
    return "builder.py:build"


def test_a_pickle_in_a_model_directory_is_refused(relax, run_file, tmp_path, evil):
    payload, ran = evil
    (tmp_path / "payload").write_bytes(payload)
    write = "(directory / 'model.safetensors').unlink(); "
    write += f"(directory / 'pytorch_model.bin').write_bytes(Path({str(tmp_path / 'payload')!r}).read_bytes())"
    result = relax("train", run_file(RUN), "--model.path", model_directory(tmp_path, write), "--output.dir", "run")
    assert result.code == 3
    assert "error: model.path: " in result.err
    assert not ran.exists()


def test_code_in_a_model_directory_runs_only_where_it_is_trusted(relax, run_file, tmp_path):
    code = "from transformers import Qwen3Config, Qwen3ForCausalLM; "
    code += f"open({str(tmp_path / 'ran')!r}, 'w'); "
    code += "Config = Qwen3Config; Model = Qwen3ForCausalLM"
    write = f"(directory / 'code.py').write_text({code!r}); import json; path = directory / 'config.json'; "
    write += "config = json.loads(path.read_text()); config['model_type'] = 'other'; "
    write += "config['auto_map'] = dict(AutoConfig='code.Config', AutoModelForCausalLM='code.Model'); "
    write += "path.write_text(json.dumps(config))"
    path = run_file(RUN)
    result = relax("train", path, "--model.path", model_directory(tmp_path, write), "--output.dir", "run")
    assert result.code == 3
    assert "needs Python code of its own to be run. Fix: read its *.py files, and where you trust them" in result.err
    assert not (tmp_path / "ran").exists()


def test_no_secret_of_the_environment_is_written(relax, run_file, tmp_path, monkeypatch):
    secret = "hf_0123456789abcdef"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, secret)
    result = relax("train", run_file(RUN + "\n").rename(tmp_path / "r.yaml"), "--tensorboard", "--output.dir", "run")
    assert result.code == 0, result.err
    assert secret not in result.out + result.err
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_a_disabled_plugin_is_not_imported(relax, install, tmp_path, monkeypatch):
    install("acme-loud", "loud", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("RELAX_DISABLE_PLUGINS", "loud")
    assert "disabled" in relax("plugins", "list").out
    assert not (tmp_path / "ran").exists()
    monkeypatch.delenv("RELAX_DISABLE_PLUGINS")
    relax("plugins", "list")
    assert (tmp_path / "ran").exists()
