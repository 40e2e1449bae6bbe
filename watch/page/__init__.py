"""The web page of a running job."""
