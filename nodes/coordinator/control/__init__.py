"""Control of a running job from what is measured: sync gap, elastic rate, shares of unequal trainers."""
