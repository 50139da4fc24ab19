"""Training on several replicas: what each is given, how losses are scaled, and what is refused."""
