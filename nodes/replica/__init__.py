"""A trainer's replica: parameters, gradients, devices."""
