"""Deployment to institutions: scaffold, site checks, export, and the Flower apps of coordinator and sites."""
