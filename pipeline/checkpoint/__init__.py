"""Checkpoints: safetensors files and a manifest that is written last."""
