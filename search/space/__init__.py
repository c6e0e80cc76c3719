"""What may be chosen: items, their sizes and costs, layouts, packing, feasibility."""
