"""The skeleton every service stands on: settings, logs, a stop token, health, metrics, the loop around `step`."""
