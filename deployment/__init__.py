"""Rendering of jobs for the engines of clusters: Kubernetes and Slurm."""
