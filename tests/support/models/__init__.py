"""Models for tests, data for them, and what capture must support.

``engine_models``     small models of all families, each with a batch function
``layer_models``      models with layers that are hard to capture
``zoo``               the models that capture must support, and their operators
``captured_models``   built-in models that are captured once
``model_folders``     small transformers models as folders
``vision_libraries``  small timm and diffusers models as folders
``small_nets``        a small network in NumPy, and groups of replicas that train it
``tables``            small datasets on disk, and a tokenizer
"""
