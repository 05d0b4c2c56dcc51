"""Peers, packets and routers, and waiting for them.

``futures``         calls on threads of their own
``quiet``           waits until a transport has finished
``sent_messages``   messages as their receiver gets them, through bytes
``session_calls``   a worker's session without a connection
``silent_callers``  callers that connect and send almost nothing
``ipv4``            packets of a TUN device
``nat_cluster``     a broker and workers behind routers
``upnp_router``     a router that speaks UPnP on loopback
``upnp_daemon``     the real miniupnpd
"""
