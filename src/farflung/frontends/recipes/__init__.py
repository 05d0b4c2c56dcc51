"""Models that are ready to train, and the way to a user's own.

- ``base``: what a recipe is. ``registry``: recipes by name.
- ``gpt``, ``moe``, ``resnet``, ``cnn``, ``classifier``: models that are written here. ``waist``: few numbers at a cut.
- ``huggingface``, ``model_folder``, ``tasks``: models of ``transformers``. ``file_sources``: names in their files.
- ``timm_folder``, ``diffusion_folder``: models of ``timm`` and ``diffusers``.
- ``adapted_base``, ``adapters``: adapters on a frozen base. ``serving``: served language models.
"""

from farflung.frontends.recipes.base import Form, Recipe
from farflung.frontends.recipes.registry import RECIPES, load_recipe

__all__ = ["RECIPES", "Form", "Recipe", "load_recipe"]
