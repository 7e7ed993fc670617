"""What is served, on what, under which load: chips, models, engines, deployments, workloads, studies."""
