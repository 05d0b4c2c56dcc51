"""A worker's lease of its broker: what counts as silence, and what does not."""

from __future__ import annotations

from farflung.worker.control_session import BrokerLease


def test_a_worker_that_handles_a_message_for_long_does_not_expire_the_broker() -> None:
    lease = BrokerLease(0.0, length=5.0)
    lease.receive()
    assert [lease.silence(float(now)) for now in range(1, 20)] == [None] * 19
    lease.handled(20.0)
    assert [lease.silence(float(now)) for now in range(21, 26)] == [None] * 5
    assert lease.silence(26.0) == 6.0


def test_a_worker_that_was_stopped_gives_the_broker_half_a_lease() -> None:
    lease = BrokerLease(0.0, length=4.0)
    assert lease.silence(1.0) is None
    assert lease.silence(1000.0) is None, "it has read no message in that time"
    assert lease.silence(1001.0) is None
    assert lease.silence(1002.5) == 4.5
