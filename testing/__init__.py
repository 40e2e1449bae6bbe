"""For those who write algorithms: what every one of them must withstand."""
