"""The system as it is deployed: every part a container, two of each service, on a network of their own."""
