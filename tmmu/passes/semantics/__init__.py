"""What a graph computes: patterns, modality, phase, workload, and the costs of each op. No torch."""
