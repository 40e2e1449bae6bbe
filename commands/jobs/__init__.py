"""Commands that check, start or go on with a job."""
