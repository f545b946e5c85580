package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"palyra/cmd/internal/installed"
	"palyra/crypt/scrub"
	"palyra/hub/config"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/sdnotify"
	"palyra/isolate/cell"
	broker "palyra/isolate/egress/client"
	"palyra/isolate/selfconfine"
	"palyra/transport/enrol"
	"palyra/transport/httpapi"
	"palyra/transport/peer"
)

// daemon is a palyrad from its configuration to its end. Fields without a
// remark are set by open and not changed afterwards.
type daemon struct {
	*program
	again func() (*config.Config, error)       // reads the configuration anew
	cfg   atomic.Pointer[config.Config]        // swapped by reload
	conf  atomic.Pointer[selfconfine.Controls] // observed after each start and reload
	level slog.LevelVar

	console atomic.Bool // it's served
	netlink []*os.File  // that the service manager passed for it; set once

	log      *slog.Logger
	secrets  *scrub.Registry // those that were given out, which no output and no log line holds
	notify   *sdnotify.Notifier
	started  time.Time
	lock     *durable.FileLock
	attempts *attempts
	safe     bool
	frozen   error // why this start can't write, and safe is set; nil: it can
	cellPath string
	starter  *cell.Starter
	egress   broker.Broker // nil: calls that name hosts are refused
	sockets  *sockets
	core     *core

	draining atomic.Bool
	waiting  atomic.Pointer[string] // what the last reload could not apply; nil: nothing
	closers  []func()               // of what is open, in the order in which it was opened
}

// run serves until it gets a stop. An error means that it couldn't start or had to end.
func (d *daemon) run(ctx context.Context) (err error) {
	setUmask()
	d.started = time.Now()
	d.level.Set(logLevel(d.cfg.Load().Daemon.LogLevel))
	d.secrets = scrub.New()
	d.log = newLog(d.stderr, &d.level, d.secrets)
	// This holds the signals that may come while one is handled; more of the same say
	// nothing new.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	defer d.close()
	if err := d.open(ctx); err != nil {
		// The caller prints the whole error.
		d.notify.Status("not started: " + err.Error())
		return err
	}
	return d.serve(ctx, signals)
}

// open opens everything, in the order of the package comment.
func (d *daemon) open(ctx context.Context) (err error) {
	cfg := d.cfg.Load()
	getenv := lookup(d.environ)
	if d.notify, err = sdnotify.Dial(getenv); err != nil {
		return fault.New(fault.BadState, "config_invalid", "find service manager", err)
	}
	d.opened(func() { d.notify.Close() })
	passed, err := sdnotify.Listeners(getenv, os.Getpid())
	if err != nil {
		return fault.New(fault.BadState, "config_invalid", "take sockets from service manager", err)
	}
	if d.netlink, passed, err = takeNetlink(passed); err != nil {
		return err
	}
	d.tell("opening " + cfg.State.Dir)
	if err := d.claim(cfg); err != nil {
		return err
	}
	d.log.Info("start", "version", version, "profile", cfg.Profile, "state", cfg.State.Dir, "config", cfg.Path(), "safe_mode", d.safe)

	d.tell("starting palyra-cell")
	if err := d.startCell(cfg); err != nil {
		return err
	}
	if passed, err = d.openEgress(cfg, passed); err != nil {
		return err
	}
	d.tell("opening journal and working state")
	if d.core, err = d.openCore(ctx, cfg); diskFull(err) && d.frozen == nil {
		if err = d.freeze(err); err == nil {
			d.core, err = d.openCore(ctx, cfg)
		}
	}
	if err != nil {
		return err
	}
	d.opened(d.core.close)
	d.tell("opening sockets")
	if d.sockets, err = listen(ctx, cfg, passed); err != nil {
		return err
	}
	d.opened(d.sockets.close)
	return d.confine(cfg)
}

// claim takes the state directory for this process alone and counts the start.
func (d *daemon) claim(cfg *config.Config) (err error) {
	if err := durable.MkdirAll0700(cfg.State.Dir); err != nil {
		return durable.Fault(fmt.Sprintf("make state directory %q", cfg.State.Dir), err)
	}
	if err := durable.CheckOwn(cfg.State.Dir, "palyrad.lock"); err != nil {
		return err
	}
	if d.lock, err = durable.Lock(filepath.Join(cfg.State.Dir, "palyrad.lock")); err != nil {
		return err
	}
	d.opened(func() { d.lock.Unlock() })
	if d.attempts, d.safe, err = begin(cfg.State.Dir, d.started); diskFull(err) {
		return d.freeze(err)
	}
	if err == nil && d.safe {
		d.log.Warn("safe mode: reading only", "failed_starts", d.attempts.file.Failed-1,
			"hint", "the log of the starts before says why; when it is repaired, restart palyrad")
	}
	return err
}

func diskFull(err error) bool { return errors.Is(err, fault.ErrDiskFull) }

// freeze goes on with this start in safe mode because of a full disk.
func (d *daemon) freeze(why error) error {
	d.safe, d.frozen = true, why
	d.log.Warn("safe mode: reading only", "error", why.Error(), "reason", fault.ReasonOf(why), "hint", "make room on the disk, then restart palyrad")
	return d.attempts.freeze()
}

// startCell finds or starts the starter of palyra-cells, before anything else runs in this
// process that could harm it.
func (d *daemon) startCell(cfg *config.Config) (err error) {
	if cfg.Cell.Path != "" {
		d.cellPath, err = installed.Check(cfg.Cell.Path)
	} else {
		d.cellPath, err = d.helper("palyra-cell")
	}
	if err != nil {
		return err
	}
	if cfg.Cell.Starter != "" {
		d.starter, err = cell.DialStarter(cfg.Cell.Starter)
	} else {
		d.starter, err = cell.NewStarter(d.cellPath)
	}
	if err == nil {
		d.opened(func() { d.starter.Close() })
	}
	return err
}

// helper finds a program that is installed with palyrad.
func (d *daemon) helper(name string) (string, error) {
	exe, err := d.executable()
	if err != nil {
		return "", fault.New(fault.Refused, "helper_unusable", "find "+name, err)
	}
	return installed.Find(exe, name)
}

// readable are the places whose files a call can name: programs and the files that they
// link. All else that a call names lies in a workspace.
var readable = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/etc/localtime", "/etc/ld.so.cache",
	"/etc/alternatives", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/proc/sys/kernel", "/sys/kernel/mm/transparent_hugepage"}

// dacReadSearch is CAP_DAC_READ_SEARCH. As root palyrad keeps it: workspaces
// belong to others.
const dacReadSearch = 1 << 2

// confine gives up all rights that the process no longer needs.
func (d *daemon) confine(cfg *config.Config) error {
	c := selfconfine.Config{Read: append([]string(nil), readable...), Write: []string{cfg.State.Dir}, KeepCapabilities: dacReadSearch}
	addDir := func(file string) {
		if file == "" {
			return
		}
		c.Read = append(c.Read, filepath.Dir(file))
		if real, err := filepath.EvalSymlinks(file); err == nil { // certificates are often links
			c.Read = append(c.Read, filepath.Dir(real))
		}
	}
	// Directories, not files: the next reload must read a file that a rename put in place.
	for _, f := range []string{cfg.Path(), cfg.Listen.TLSCert, cfg.Listen.TLSKey, d.cellPath, d.core.toolPath} {
		addDir(f)
	}
	if cfg.Policy.Dir != "" {
		c.Read = append(c.Read, cfg.Policy.Dir)
	}
	for _, w := range cfg.Workspaces {
		c.Read = append(append(append(c.Read, w.Path), w.Mounts...), w.Programs...)
	}
	if d.sockets.own != "" { // it is removed at the end
		c.Write = append(c.Write, filepath.Dir(d.sockets.own))
	}
	err := selfconfine.Apply(c)
	r := selfconfine.Report()
	d.conf.Store(&r)
	switch {
	case err == nil:
		return nil
	case cfg.Cell.Confinement == "enforce":
		return err
	}
	d.log.Warn("not confined", "error", err.Error(), "hint", "status names each control; cell.confinement = \"enforce\" would have refused to start")
	return nil
}

// serve answers until a signal, a broken listener or the end of the starter.
func (d *daemon) serve(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait
	served := make(chan error, 1)
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	wg.Go(func() { served <- d.answer(serving) })
	beat, err := d.watchdogInterval()
	if err != nil {
		return err
	}
	wg.Go(func() { d.watch(ctx, beat) })
	wg.Go(func() { d.retain(ctx) })
	wg.Go(func() { d.expect(ctx) })
	wg.Go(func() { d.core.local.Notify(ctx) })

	if d.frozen != nil {
		// It isn't counted, so how it ends says nothing.
	} else if err := d.attempts.ready(); err != nil {
		d.log.Warn("this start will count as failed if palyrad is killed soon", "error", err.Error())
	}
	d.ready("")
	good := time.NewTimer(d.cfg.Load().Daemon.ReadyAfter.Std())
	defer good.Stop()
	flush := time.NewTicker(cmp.Or(d.testOnlyFlush, flushEvery))
	defer flush.Stop()
	for {
		select {
		case <-flush.C:
			if err := d.core.local.Flush(ctx); err != nil {
				d.log.Warn("flush", "error", err.Error())
			}
			if err := d.core.kernel.CloseOrphans(ctx); err != nil {
				d.log.Warn("close intents of processes that died", "error", err.Error())
			}
		case <-good.C:
			if !d.safe {
				d.counted()
			}
		case s := <-signals:
			if s == syscall.SIGHUP {
				d.reload()
				continue
			}
			d.counted() // also in safe mode: whoever stops it has looked at it
			return d.drain(s, signals, stopServing, served)
		case err := <-served:
			return err
		case <-d.starter.Gone():
			return fault.New(fault.Unavailable, "helper_unusable", "serve", errors.New("the starter of palyra-cell has ended; without it nothing can be run"))
		case <-ctx.Done():
			return d.drain(nil, signals, stopServing, served)
		}
	}
}

// flushEvery is how often palyrad makes the times of last use of tokens durable, which a
// drain does too, and closes intents that a killed palyra exec left.
const flushEvery = 10 * time.Minute

func (d *daemon) counted() {
	if err := d.attempts.good(); err != nil {
		d.log.Warn("start stays counted as failed", "error", err.Error())
	}
}

// answer serves the HTTP API on both sockets.
func (d *daemon) answer(ctx context.Context) error {
	if d.sockets.pair == nil {
		return d.answerHTTP(ctx)
	}
	var wg sync.WaitGroup
	var pairing error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		pairing = enrol.NewServer(enrol.Config{Hub: d.core.local, Certificate: d.core.local.EnrolmentCertificate(), Log: d.log}).Serve(ctx, d.sockets.pair)
		cancel()
	})
	err := d.answerHTTP(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, pairing)
}

func (d *daemon) answerHTTP(ctx context.Context) error {
	on := []httpapi.Listener{{Listener: d.sockets.unix}}
	if d.sockets.peer != nil {
		d.core.local.OnDeviceEnd(d.core.api.Cut)
		on = append(on, httpapi.Listener{Listener: d.sockets.peer, TLS: peer.Server(d.core.local.PeerCertificate, d.core.local.VerifyPeer), Devices: true})
	}
	if d.sockets.http != nil && !d.sockets.healthOnly {
		l := httpapi.Listener{Listener: d.sockets.http}
		if d.sockets.cert != nil {
			l.TLS, l.Names = d.sockets.cert.config(), d.sockets.hosts()
		}
		on = append(on, l)
	}
	if d.sockets.http == nil || !d.sockets.healthOnly {
		return d.core.api.Serve(ctx, on...)
	}
	var wg sync.WaitGroup
	var health error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		l := httpapi.Listener{Listener: d.sockets.http}
		if d.sockets.cert != nil {
			l.TLS, l.Names = d.sockets.cert.config(), d.sockets.hosts()
		}
		health = d.core.health.Serve(ctx, l)
		cancel()
	})
	err := d.core.api.Serve(ctx, on...)
	cancel()
	wg.Wait()
	return errors.Join(err, health)
}

// drain lets running calls end, or ends them when the time is up or a second signal comes.
func (d *daemon) drain(s os.Signal, signals <-chan os.Signal, stopServing func(), served <-chan error) error {
	d.draining.Store(true)
	limit := d.cfg.Load().Daemon.DrainTimeout.Std()
	why := "context"
	if s != nil {
		why = s.String()
	}
	d.log.Info("drain", "signal", why, "limit", limit.String())
	d.notify.Stopping("draining")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-signals:
			d.log.Warn("drain cut short by a second signal")
			cancel()
		case <-ctx.Done():
		}
	}()
	if d.core.drain(ctx) {
		d.log.Warn("drain: the time was up; what still ran was killed")
	}
	stopServing()
	err := <-served
	d.log.Info("stop", "uptime", time.Since(d.started).Round(time.Second).String())
	return err
}

// reload reads configuration, certificate and policies again. On any error it keeps all of
// the old ones.
func (d *daemon) reload() {
	d.notify.Reloading()
	refused := func(what string, err error) {
		d.log.Error("reload refused: the old stays in force", "what", what, "error", err.Error(), "reason", fault.ReasonOf(err), "hint", fault.HintOf(err))
		text := "reload refused: " + err.Error()
		d.waiting.Store(&text)
		d.ready(text)
	}
	old := d.cfg.Load()
	next, err := d.again()
	if err != nil {
		refused("configuration", err)
		return
	}
	changed, restart := old.Diff(next)
	merged := old.WithReload(next)
	var cert *certificate
	if d.sockets.cert != nil {
		cert = &certificate{}
		if err := cert.load(merged.Listen.TLSCert, merged.Listen.TLSKey); err != nil {
			refused("certificate", err)
			return
		}
	}
	if err := d.core.reload(); err != nil {
		refused("policy", err)
		return
	}
	if cert != nil {
		d.sockets.cert.pair.Store(cert.pair.Load())
	}
	d.cfg.Store(merged)
	d.level.Set(logLevel(merged.Daemon.LogLevel))
	d.log.Info("reload", "changed", changed, "waiting_for_restart", restart, "policy_set", d.core.policySet())
	status := ""
	d.waiting.Store(nil)
	if len(restart) > 0 {
		status = "waiting for a restart: " + strings.Join(restart, ", ")
		d.waiting.Store(&status)
	}
	d.ready(status)
}

// ready tells the manager that palyrad serves.
func (d *daemon) ready(more string) {
	status := "serving"
	if d.safe {
		status = "SAFE MODE: reading only, every call is denied"
	}
	if more != "" {
		status += "; " + more
	}
	if err := d.notify.Ready(status); err != nil {
		d.log.Warn("service manager", "error", err.Error())
	}
	d.log.Info("ready", "status", status, "socket", d.sockets.unix.Addr().String(), "http", d.sockets.address(), "peer", d.sockets.peerAddress(), "confined", d.conf.Load().Enforced)
}

func (d *daemon) tell(status string) {
	if err := d.notify.Status(status); err != nil {
		d.log.Warn("service manager", "error", err.Error())
	}
}

func (d *daemon) watchdogInterval() (time.Duration, error) {
	interval, err := sdnotify.WatchdogInterval(lookup(d.environ), os.Getpid())
	if err != nil {
		return 0, fault.New(fault.BadState, "config_invalid", "read watchdog interval", err)
	}
	if !d.cfg.Load().Daemon.Watchdog {
		return 0, nil
	}
	return interval / 2, nil
}

// watch tells the manager at every beat that the kernel answers. If the kernel doesn't,
// watch is silent, and the manager kills this process and starts another.
func (d *daemon) watch(ctx context.Context, beat time.Duration) {
	if beat == 0 || !d.notify.Managed() {
		return
	}
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		alive, cancel := context.WithTimeout(ctx, beat)
		err := d.core.alive(alive)
		cancel()
		if err == nil {
			err = d.notify.Watchdog()
		}
		if err != nil && ctx.Err() == nil {
			d.log.Error("watchdog: no sign of life", "error", err.Error())
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// refuseCalls returns the reason why palyrad takes no new call, nil if it does.
func (d *daemon) refuseCalls() error {
	cfg := d.cfg.Load()
	switch {
	case d.safe:
		return d.whenSafe()
	case d.draining.Load():
		return fault.New(fault.Unavailable, "not_ready", "make call", errors.New("palyrad is about to end"))
	}
	if cfg.Journal.MinFree > 0 {
		free, err := freeBytes(cfg.State.Dir)
		if err != nil {
			return err
		}
		if free < uint64(cfg.Journal.MinFree) {
			return fault.New(fault.Unavailable, "disk_low", "make call",
				fmt.Errorf("%d bytes are free for the journal, journal.min_free is %s", free, cfg.Journal.MinFree)).WithHint("make room on the disk of " + strconv.Quote(cfg.State.Dir))
		}
	}
	return nil
}

// whenSafe returns why palyrad changes nothing, nil if it isn't in safe mode.
func (d *daemon) whenSafe() error {
	switch {
	case d.frozen != nil:
		return fault.New(fault.Unavailable, "disk_full", "change state",
			fmt.Errorf("palyrad is in safe mode because its disk was full at the start: everything can be read, nothing is changed (%w)", d.frozen)).
			WithHint("make room on the disk of the state directory, restart palyrad")
	case d.safe:
		return fault.New(fault.Unavailable, "safe_mode", "change state", errors.New("palyrad is in safe mode after failed starts: everything can be read, nothing is changed")).
			WithHint("look at the log of the starts that failed, repair it, restart palyrad")
	}
	return nil
}

// opened remembers how to close a thing just opened.
func (d *daemon) opened(f func()) { d.closers = append(d.closers, f) }

func (d *daemon) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
	d.closers = nil
}

// lookup is os.Getenv for an environment.
func lookup(environ []string) func(string) string {
	return func(name string) string {
		for i := len(environ) - 1; i >= 0; i-- {
			if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
				return v
			}
		}
		return ""
	}
}
