"""Turn a GGUF file of a Llama model into a Hugging Face folder in bfloat16.

Usage, with the engine environment's python: python convert_model.py MODEL.gguf NEW_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, folder: Path) -> None:
    """Write config, weights, tokenizer, chat template and generation settings into a new folder."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
    )

    print("reading the tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"{gguf.name} has no chat template; chat requests could not be answered")
    print("reading and de-quantising the weights", flush=True)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The model as read still says that it is quantised and would be saved, and later loaded, as such. Its
    # weights go into a new one, made from the same configuration without that entry.
    config = read.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    print("writing the folder", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
