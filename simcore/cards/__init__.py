"""Cards: what is known of models, accelerators and layouts before anything is measured."""

from simcore.cards.library import known_accelerators, known_models, load_accelerator_card, load_model_card

__all__ = ["known_accelerators", "known_models", "load_accelerator_card", "load_model_card"]
