"""Cards: what is known of models, accelerators and layouts before anything is measured."""
