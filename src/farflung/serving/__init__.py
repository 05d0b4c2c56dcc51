"""A language model behind the OpenAI API, on the machines of a broker: ``farflung serve``. In the order of data flow:

- ``model``: ``open_model``: a run's checkpoint or a model's folder, as a bundle for the broker, with its tokenizer.
- ``tokenizers``: text and chats as tokens, and back.
- ``server``: the server's life: the socket, the run, and the HTTP server.
- ``app``: ``make_app``: the HTTP API.
- ``access``: who may use the API.
- ``openai``: the bodies of requests, checked.
- ``generation``: ``Generation``: one continuation of a prompt, with its text, stops and cause of the end.
- ``scheduler``: ``Scheduler``: which tokens of which requests go into the next batch; a pure state machine.
- ``batch_groups``: into how many batches the requests are divided.
- ``service``: ``Service``: the run at the broker, batches to the workers, tokens back; survives the loss of a worker.
- ``answers``: the bodies of answers.
"""
