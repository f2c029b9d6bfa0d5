"""The book's figures: plots, panels, diagrams and sketches, all as SVG with words beside them."""
