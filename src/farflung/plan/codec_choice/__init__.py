"""The codec of each link and of each exchange between replicas.

``compression``      none, one codec everywhere, or AdaTopK's ratio by the link's slowness
``auto_codec``       ``codec = "auto"``: the fastest codec of each link within the job's error
``exchange_codec``   ``sync.codec = "auto"``: the same for exchanges between replicas
"""
