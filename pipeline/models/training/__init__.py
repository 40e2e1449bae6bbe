"""What a model is trained with: the flat buffer, optimizers, the loss."""
