"""``farflung join``: make this machine a worker.

The command imports what registration with the broker needs. ``worker.reconnect`` loads PyTorch after the registration.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from farflung.cli.cluster.observation import WorkerObservation
from farflung.cli.cluster.timed_log import timed_log
from farflung.cli.home import members_folder, own_key, worker_log, worker_name
from farflung.cli.options import MetricsOption, VerboseOption, host, quantity, readable_folder
from farflung.errors import FarflungError, InputError, SecurityError
from farflung.extras import require_upnp
from farflung.telemetry.activity import Activity
from farflung.telemetry.log_file import LogWriter
from farflung.telemetry.terminal import terminal
from farflung.thread_group import ThreadGroup
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from farflung.worker.options import WorkerOptions

if TYPE_CHECKING:
    from farflung.launchers.clouds.spot_notices import SpotNotices
    from farflung.worker.membership import Membership
    from farflung.worker.owner_limits import OwnerLimits
    from farflung.worker.reconnect import Service

__all__ = ["register"]

#: How long the threads of the command may take to end, in seconds.
_END_SECONDS = 5.0

#: Characters of the name of a region.
_LONGEST_REGION = 100

#: The variable of the environment that holds a ticket to join.
TICKET = "FARFLUNG_TICKET"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(join)


def join(
    ticket: Annotated[
        str, typer.Argument(envvar=TICKET, help="Ticket that the broker printed, or a file that contains it (also @FILE).")
    ],
    name: Annotated[str | None, typer.Option(help="Name of this worker (default: from the host name).")] = None,
    engine: Annotated[
        str, typer.Option(help="auto (an installed one, with an accelerator if there is one), torch or jax.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto (an accelerator, if there is one), cpu, cuda, cuda:N, mps or xpu.")] = "auto",
    devices: Annotated[
        str | None, typer.Option(help="Join as a site, with a rank for each device: all, 0,1, cuda:0,cuda:1 or cpu,cpu.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help='Memory for training, e.g. "8 GB" (default: 80 % of what is free).')] = None,
    disk: Annotated[
        str | None, typer.Option(help='Disk space for models that do not fit into memory, e.g. "20 GB" (default: none).')
    ] = None,
    disk_folder: Annotated[Path | None, typer.Option(help="Folder of --disk (default: of this worker's files).")] = None,
    peak: Annotated[str | None, typer.Option(help='Peak speed, e.g. "20 TFLOP/s" (default: measured).')] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on for other workers.")] = "0.0.0.0:0",
    advertise: Annotated[str | None, typer.Option(help="Host name or IP address for other workers (default: detected).")] = None,
    map_port: Annotated[
        bool, typer.Option("--map-port", help="Ask the router to forward a port to this worker until it leaves (UPnP or PCP).")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Folder that jobs may read; relative data paths start here.")] = None,
    retry: Annotated[str, typer.Option(help="How long to retry when the broker is unreachable.")] = "10 min",
    any_path: Annotated[bool, typer.Option("--any-path", help="Let jobs read every file that you can read.")] = False,
    hours: Annotated[str | None, typer.Option(help='Working hours, e.g. "22:00-07:00" (local time).')] = None,
    bandwidth: Annotated[str | None, typer.Option(help='Limit of the upload rate, e.g. "20 Mbit/s".')] = None,
    service: Annotated[bool, typer.Option("--service", help="Write a systemd unit for this command, and exit.")] = False,
    user: Annotated[bool, typer.Option("--user", help="With --service: a unit of your user, without root.")] = False,
    region: Annotated[str, typer.Option(help='Where this machine is, e.g. "home" or "eu-west-1", for planners and pages.')] = "",
    no_listen: Annotated[bool, typer.Option("--no-listen", help="Accept no connections from other workers.")] = False,
    unreliable: Annotated[
        bool,
        typer.Option(
            "--unreliable", help="This machine may leave at any time: jobs with plan.helpers give it no stage, it only helps."
        ),
    ] = False,
    only: Annotated[str | None, typer.Option(help="Take part only in runs of this kind: training or serving.")] = None,
    no_relay: Annotated[bool, typer.Option("--no-relay", help="Do not relay traffic between other workers.")] = False,
    isolation: Annotated[
        str,
        typer.Option(help="Compute each job in a locked process: auto (as far as this system can), required, or off."),
    ] = "auto",
    spot_notices: Annotated[
        str | None, typer.Option(help="Leave when this cloud announces the end of a spot machine: aws, azure or gcp.")
    ] = None,
    metrics: MetricsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Join a broker as a worker. Ctrl-C leaves after the current step, a second Ctrl-C at once."""
    from farflung.security.ticket_argument import parse_ticket
    from farflung.transports.descriptors import raise_descriptor_limit
    from farflung.worker import membership
    from farflung.worker.owner_limits import OwnerLimitsFile
    from farflung.worker.reconnect import Service

    raise_descriptor_limit()
    notices, site, invitation = _spot_notices(spot_notices), _site_devices(devices, device, disk), parse_ticket(ticket)
    options = WorkerOptions(
        engine=engine,
        device=device,
        devices=site,
        memory=None if memory is None else float(quantity(Bytes, memory, "--memory")),
        disk=0.0 if disk is None else float(quantity(Bytes, disk, "--disk")),
        disk_folder=_disk_folder(disk_folder, disk),
        peak=None if peak is None else float(quantity(FlopsPerSecond, peak, "--peak")),
        listen="" if no_listen else listen,
        advertise=host(advertise, "--advertise"),
        data=Path.cwd() if data is None else readable_folder(data, "--data"),
        any_path=any_path,
        relay=not no_relay,
        reliable=not unreliable,
        isolation=_known_isolation(isolation),
        region=_checked_region(region),
        only=_kind_of_run(only),
        map_port=map_port and _is_mappable("" if no_listen else listen, advertise),
    )
    _check_name(name)
    patience, key = quantity(Seconds, retry, "--retry"), own_key()
    if service:
        given = {"--peak": peak, "--hours": hours, "--bandwidth": bandwidth, "--memory": memory, "--retry": retry}
        given |= {"--metrics": metrics, "--spot-notices": spot_notices, "--disk": disk}
        _write_service(name or worker_name(key), str(invitation), options, given, user=user)
        return
    rate = None if bandwidth is None else float(quantity(BytesPerSecond, bandwidth, "--bandwidth"))
    _check_machine(options)
    limits = OwnerLimitsFile(members_folder(), name) if name else OwnerLimitsFile.claim(members_folder(), worker_name(key))
    own, before, joined = limits.name, limits.read(), Event()
    _tell_limits(own, limits.begin({"hours": hours, "memory": options.memory, "bandwidth": rate}))
    say = _twofold_log(writer := LogWriter(), own, verbose=verbose)
    with ExitStack() as ending:
        ending.callback(lambda: limits.end(None if joined.is_set() else before))
        ending.callback(writer.close)
        observation = ending.enter_context(closing(WorkerObservation(own, metrics, say)))
        activity = Activity(terminal(), say)
        kept = members_folder() / f"{own}.certificate"
        serving = Service(
            lambda: _entered(joined, membership.join(invitation, name=own, role="worker", key=key, kept=kept)),
            options,
            say,
            limits,
            activity.phase,
            observation,
        )
        observation.serve(serving)
        try:
            _serve(serving, activity, patience, notices)
        except FarflungError as error:
            writer.write(worker_log(own), f"ended: {error}")
            raise
    typer.echo(f"{own}: left")


def _entered(joined: Event, member: Membership) -> Membership:
    """Return ``member``; from now on the limits of the command line stay stored."""
    joined.set()
    return member


def _check_name(name: str | None) -> None:
    """See that a certificate can have the name of this worker (None: the default name, which it can).

    Raises:
        InputError: it has a character that is not allowed, or is too long.
    """
    from farflung.security.certificates import tls_name

    try:
        tls_name(name or "worker")
    except SecurityError as error:
        raise InputError(f"--name: {error}") from None


def _check_machine(options: WorkerOptions) -> None:
    """See that this machine has what ``options`` name, before the broker is called and PyTorch is loaded.

    Raises:
        InputError: a device is missing, the address can't be listened at, the disk can't be used, or a CPU lacks the memory.
    """
    from farflung.transports.tcp.sockets import open_server
    from farflung.worker.links.second_address import listening_address

    for device in options.devices or (options.device,):
        if device not in ("auto", "cpu", "all") and not device.isdecimal():
            from farflung.engines.devices import require_device  # here: it loads the engines' packages

            require_device(device)
    if options.memory is not None:
        _check_memory(options.memory, options.devices or (options.device,))
    if options.listen:
        open_server(listening_address(options, "")).close()
    if options.disk:
        from farflung.engines.state_file import DiskSpace  # here: as above

        DiskSpace(options.disk_folder, int(options.disk)).check()


def _check_memory(memory: float, devices: tuple[str, ...]) -> None:
    """See that this machine has ``memory`` bytes. An accelerator has its own memory, which is compared when it is opened.

    Raises:
        InputError: a CPU computes, and has less.
    """
    import psutil  # here: most workers name no memory

    installed = float(psutil.virtual_memory().total)
    text = f"--memory {Bytes(memory).written()}: this machine has {Bytes(installed).written(3)} of memory"
    if memory > installed and set(devices) == {"cpu"}:
        raise InputError(f"{text}; offer less")
    if memory > installed and "auto" in devices:
        typer.echo(f"{text}; on the CPU, this worker offers that much")


def _twofold_log(writer: LogWriter, own: str, *, verbose: bool) -> Callable[[str], None]:
    """Return what prints a line and writes it to the log of the worker ``own``."""
    shown = timed_log(verbose=verbose)

    def say(line: str) -> None:
        writer.write(worker_log(own), line)
        shown(line)

    return say


def _tell_limits(own: str, stored: OwnerLimits) -> None:
    """Print the limits of the worker ``own``, if there are any, and the commands that change them."""
    if str(stored) != "no limits":
        pause = "farflung resume ends the pause, and " if stored.paused else ""
        typer.echo(f"{own}: {stored}; {pause}farflung limit changes the limits")


def _spot_notices(cloud: str | None) -> SpotNotices | None:
    """Return what waits for notices of ``cloud`` (``None``: nothing does)."""
    if cloud is None:
        return None
    from farflung.launchers.clouds.spot_notices import SpotNotices  # here: few workers need a client of HTTP

    return SpotNotices(cloud)


def _serve(serving: Service, activity: Activity, patience: Seconds, notices: SpotNotices | None) -> None:
    """Serve until a signal or a notice asks to leave, or the broker is lost for longer than ``patience``."""
    threads = ThreadGroup()

    def leave(*_: object) -> None:
        # the session's locks may be held by the very thread that the signal interrupts
        threads.spawn("leave", serving.part)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    threads.spawn("owner-limits", serving.watch)
    if notices is not None:
        threads.spawn("spot-notices", notices.watch, lambda: _leave_by_notice(serving, activity))
    try:
        with activity:
            serving.run(patience)
    finally:
        serving.stop()
        if notices is not None:
            notices.stop()
        threads.join(_END_SECONDS)


def _leave_by_notice(serving: Service, activity: Activity) -> None:
    activity.say("the cloud ends this machine soon: its part of a run moves to other workers")
    serving.part()


def _site_devices(devices: str | None, device: str, disk: str | None) -> tuple[str, ...]:
    if devices is None:
        return ()
    if disk is not None:
        raise InputError("--disk with --devices: sites have their optimizer states in memory; remove one of the two")
    if device != "auto":
        raise InputError(
            f"--device {device} with --devices {devices:.60}: a worker is one device or a site; remove one of the two"
        )
    from farflung.engines.site.devices import parse_devices  # here: it loads the engines' packages, which few workers need now

    return parse_devices(devices)


def _disk_folder(folder: Path | None, disk: str | None) -> Path:
    if folder is None:
        return members_folder()
    if disk is None:
        raise InputError(f"--disk-folder {folder} without --disk: say how much space the worker may use, such as --disk '20 GB'")
    return folder.resolve()


def _known_isolation(isolation: str) -> str:
    known = ("auto", "required", "off")  # engines.isolation.ISOLATION, which would load more than registration needs
    if isolation not in known:
        raise InputError(f"unknown isolation {isolation!r}: --isolation takes {', '.join(known)}")
    return isolation


def _kind_of_run(only: str | None) -> Literal["", "training", "serving"]:
    match only:
        case None:
            return ""
        case "training" | "serving":
            return only
    raise InputError(f"--only takes training or serving, not {only!r:.40}: leave it out to take part in both")


def _checked_region(region: str) -> str:
    if len(region) > _LONGEST_REGION or not region.isprintable():
        raise InputError(
            f"--region takes at most {_LONGEST_REGION} printable characters, got {region!r:.40}: choose a short name"
        )
    return region


def _is_mappable(listen: str, advertise: str | None) -> bool:
    """Return ``True``: a router's port can lead to a worker that listens at ``listen``.

    Raises:
        InputError: it does not listen, or at one address only; its owner gives another address; or a library is missing.
    """
    require_upnp("--map-port")
    if advertise is not None:
        raise InputError("--map-port with --advertise: the router's address is the one that others use; remove one of the two")
    if listen.rpartition(":")[0] not in ("0.0.0.0", "[::]", ""):  # noqa: S104 - compared, not bound
        raise InputError(f"--map-port with --listen {listen:.60}: the router needs a worker that listens at 0.0.0.0:PORT")
    if not listen:
        raise InputError("--map-port with --no-listen: the router needs a worker that listens; remove one of the two")
    return True


def _write_service(own: str, ticket: str, options: WorkerOptions, given: Mapping[str, str | None], *, user: bool) -> None:
    """Write the unit of the worker ``own``, and print how to start it. ``given``: options as the user wrote them."""
    from farflung.cli.cluster.systemd_units import keep_join_ticket, unit_text, write_unit

    words = [str(keep_join_ticket(own, ticket)), "--name", own, "--device", options.device]
    words += ["--devices", ",".join(options.devices)] if options.devices else []
    words += [] if options.engine == "auto" else ["--engine", options.engine]
    words += ["--listen", options.listen] if options.listen else ["--no-listen"]
    words += ["--data", str(options.data.resolve())]
    for option, value in {**given, "--advertise": options.advertise}.items():
        words += [] if value is None else [option, value]
    words += [] if options.disk_folder == members_folder() else ["--disk-folder", str(options.disk_folder)]
    words += ["--map-port"] if options.map_port else []
    words += ["--any-path"] if options.any_path else []
    words += ["--region", options.region] if options.region else []
    words += ["--only", options.only] if options.only else []
    words += [] if options.relay else ["--no-relay"]
    words += [] if options.reliable else ["--unreliable"]
    words += [] if options.isolation == "auto" else ["--isolation", options.isolation]
    writable = [options.disk_folder] if options.disk else []
    for line in write_unit(own, unit_text(own, words, options.data.resolve(), user=user, writable=writable), user=user):
        typer.echo(line)
