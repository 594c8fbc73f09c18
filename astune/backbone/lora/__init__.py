"""Adapters (LoRA) as every backbone that trains them has them: which layers get one, and the files of peft."""
