package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"palyra/internal/fault"
)

// The names of the Secret Service API (freedesktop.org, draft 0.2).
const (
	ssName       = "org.freedesktop.secrets"
	ssPath       = dbus.ObjectPath("/org/freedesktop/secrets")
	ssService    = "org.freedesktop.Secret.Service."
	ssCollection = "org.freedesktop.Secret.Collection."
	ssItem       = "org.freedesktop.Secret.Item."
	ssPrompt     = "org.freedesktop.Secret.Prompt."
	ssNone       = dbus.ObjectPath("/") // no object, no prompt
	busName      = "org.freedesktop.DBus"

	ssSchema = "dev.palyra.Vault" // the attribute xdg:schema of our items
	ssLabel  = "Palyra vault identity"
)

const unlockHow = "log in to the desktop, or unlock the keyring in its password manager"

// secrets keeps a value as an item of the default collection of the desktop's keyring.
type secrets struct{ ask bool }

func secretService(ask bool) (store, error) { return secrets{ask}, nil }

// session is a connection to one instance of the service, and a key that is agreed with it. All
// calls go to that instance's own name: if it ends, they fail, and reach no successor.
type session struct {
	op    string
	ask   bool
	conn  *dbus.Conn
	owner string
	path  dbus.ObjectPath
	key   []byte // of the values on the bus
	stop  context.CancelFunc
}

// dial connects to the session bus, finds the service and opens a session.
func (s secrets) dial(ctx context.Context, op string) (*session, error) {
	c, err := dialBus(ctx, op)
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(ctx)
	x := &session{op: op, ask: s.ask, stop: stop}
	late := time.AfterFunc(patience, stop) // Auth and Hello take no context of their own
	// The connection is closed when life ends. Nothing that it reads has a file descriptor.
	if x.conn, err = dbus.NewConn(c, dbus.WithContext(life)); err == nil {
		if err = x.conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err == nil {
			err = x.conn.Hello()
		}
	}
	if !late.Stop() && ctx.Err() == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		stop()
		return nil, x.fault(err)
	}
	if err := x.begin(ctx); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

// begin finds the service's own name, starting it if the bus can, and agrees on a key.
func (x *session) begin(ctx context.Context) error {
	// A service that can't be started may still be there; the next call tells.
	_, startErr := x.at(ctx, busName, "/org/freedesktop/DBus", busName+".StartServiceByName", ssName, uint32(0))
	body, err := x.at(ctx, busName, "/org/freedesktop/DBus", busName+".GetNameOwner", ssName)
	if err != nil {
		if startErr != nil && fault.KindOf(startErr) != fault.Unavailable {
			err = startErr
		}
		return err
	}
	if x.owner, err = arg[string](x, body, 0); err != nil {
		return err
	}
	kx, public := newExchange()
	body, err = x.call(ctx, ssPath, ssService+"OpenSession", exchangeName, dbus.MakeVariant(public))
	if err != nil {
		return err
	}
	v, err := arg[dbus.Variant](x, body, 0)
	if err != nil {
		return err
	}
	theirs, ok := v.Value().([]byte)
	if !ok {
		return x.malformed(errors.New("no public key"))
	}
	if x.key, err = kx.key(theirs); err != nil {
		return x.malformed(err)
	}
	x.path, err = arg[dbus.ObjectPath](x, body, 1)
	return err
}

func (x *session) close() {
	clear(x.key)
	x.stop()
	_ = x.conn.Close()
}

// call calls a method of the service.
func (x *session) call(ctx context.Context, path dbus.ObjectPath, method string, args ...any) ([]any, error) {
	return x.at(ctx, x.owner, path, method, args...)
}

func (x *session) at(ctx context.Context, dest string, path dbus.ObjectPath, method string, args ...any) ([]any, error) {
	if !path.IsValid() {
		return nil, x.malformed(errors.New("no path of an object"))
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := x.conn.Object(dest, path).CallWithContext(bounded, method, 0, args...)
	if c.Err == nil {
		return c.Body, nil
	}
	if ctx.Err() != nil {
		return nil, gaveUp(x.op, ctx.Err())
	}
	return nil, x.fault(c.Err)
}

// fault says what an error of the bus or the service means. Its text is the service's.
func (x *session) fault(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return gaveUp(x.op, err)
	}
	e, ok := errors.AsType[dbus.Error](err)
	if !ok {
		return absent(x.op, errors.New("the connection to the bus has ended"), "is the keyring's daemon still there?")
	}
	said := ""
	if len(e.Body) > 0 {
		said, _ = e.Body[0].(string)
	}
	switch cause := fmt.Errorf("%.100q: %.200q", e.Name, said); e.Name {
	case "org.freedesktop.Secret.Error.IsLocked":
		return locked(x.op, unlockHow)
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
		return absent(x.op, errors.New("no keyring serves "+ssName), "start one (gnome-keyring, KWallet, KeePassXC), or take another backend")
	case "org.freedesktop.DBus.Error.NoReply":
		return absent(x.op, errors.New("the keyring's daemon ended before it answered"), "try again when it runs")
	default:
		return absent(x.op, cause, "does the keyring work? secret-tool search --all xdg:schema "+ssSchema)
	}
}

func (x *session) malformed(err error) error {
	return fault.New(fault.Integrity, "bad_answer", x.op, fmt.Errorf("the keyring's answer is malformed: %w", err))
}

// arg returns one value of an answer, whose types are the service's choice.
func arg[T any](x *session, body []any, i int) (T, error) {
	if i < len(body) {
		if v, ok := body[i].(T); ok {
			return v, nil
		}
	}
	var none T
	return none, x.malformed(fmt.Errorf("value %d is no %T", i, none))
}

// attributes name an item of ours. They aren't secret: a locked keyring shows them, too.
func attributes(name string) map[string]string {
	return map[string]string{"xdg:schema": ssSchema, "name": name}
}

// collection returns the default collection. One that lives in memory alone won't do.
func (x *session) collection(ctx context.Context) (dbus.ObjectPath, error) {
	var paths [2]dbus.ObjectPath
	for i, alias := range []string{"default", "session"} {
		body, err := x.call(ctx, ssPath, ssService+"ReadAlias", alias)
		if err == nil {
			paths[i], err = arg[dbus.ObjectPath](x, body, 0)
		}
		if err != nil {
			return "", err
		}
	}
	if paths[0] == ssNone || paths[0] == paths[1] {
		return "", absent(x.op, errors.New("the keyring has no default collection that lasts"), "make one in the desktop's password manager, and set it as the default")
	}
	return paths[0], nil
}

// unlock unlocks a collection or an item, which may take a person.
func (x *session) unlock(ctx context.Context, path dbus.ObjectPath) error {
	body, err := x.call(ctx, ssPath, ssService+"Unlock", []dbus.ObjectPath{path})
	if err != nil {
		return err
	}
	prompt, err := arg[dbus.ObjectPath](x, body, 1)
	if err != nil || prompt == ssNone {
		return err
	}
	_, err = x.prompt(ctx, prompt)
	return err
}

// prompt has the service ask the person at the desktop, and waits for the answer.
func (x *session) prompt(ctx context.Context, path dbus.ObjectPath) (any, error) {
	if !x.ask {
		return nil, locked(x.op, unlockHow)
	}
	bounded, cancel := context.WithTimeout(ctx, prompted)
	defer cancel()
	signals := make(chan *dbus.Signal, 8)
	x.conn.Signal(signals)
	defer x.conn.RemoveSignal(signals)
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(x.owner), dbus.WithMatchObjectPath(path), dbus.WithMatchInterface("org.freedesktop.Secret.Prompt"), dbus.WithMatchMember("Completed")},
		{dbus.WithMatchSender(busName), dbus.WithMatchInterface(busName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, x.owner)},
	} {
		if err := x.conn.AddMatchSignalContext(bounded, match...); err != nil {
			return nil, x.fault(err)
		}
	}
	if _, err := x.call(bounded, path, ssPrompt+"Prompt", ""); err != nil {
		return nil, err
	}
	for {
		select {
		case s, ok := <-signals:
			switch {
			case !ok:
				return nil, x.fault(dbus.ErrClosed)
			// The bus says who sent a signal.
			case s.Sender == busName && s.Name == busName+".NameOwnerChanged" && len(s.Body) == 3 && s.Body[0] == x.owner && s.Body[2] == "":
				return nil, x.fault(dbus.Error{Name: "org.freedesktop.DBus.Error.NoReply"})
			case s.Sender == x.owner && s.Path == path && s.Name == ssPrompt+"Completed":
				dismissed, err := arg[bool](x, s.Body, 0)
				if err != nil {
					return nil, err
				}
				if dismissed {
					return nil, locked(x.op, unlockHow)
				}
				v, err := arg[dbus.Variant](x, s.Body, 1)
				return v.Value(), err
			}
		case <-bounded.Done():
			// Without an answer: the caller waits no longer.
			x.conn.Object(x.owner, path).Go(ssPrompt+"Dismiss", dbus.FlagNoReplyExpected, nil)
			if ctx.Err() != nil {
				return nil, gaveUp(x.op, ctx.Err())
			}
			return nil, fault.New(fault.Timeout, "timeout", x.op, errors.New("the keyring's question was not answered")).WithHint(unlockHow)
		}
	}
}

// find returns the items of a name, unlocked.
func (x *session) find(ctx context.Context, name string) ([]dbus.ObjectPath, error) {
	search := func() (open, shut []dbus.ObjectPath, err error) {
		body, err := x.call(ctx, ssPath, ssService+"SearchItems", attributes(name))
		if err == nil {
			open, err = arg[[]dbus.ObjectPath](x, body, 0)
		}
		if err == nil {
			shut, err = arg[[]dbus.ObjectPath](x, body, 1)
		}
		return open, shut, err
	}
	open, shut, err := search()
	if err == nil && len(open)+len(shut) == 0 {
		// Some keyrings find nothing in a collection that is locked.
		var c dbus.ObjectPath
		if c, err = x.collection(ctx); err == nil {
			if err = x.unlock(ctx, c); err == nil {
				open, shut, err = search()
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if len(open)+len(shut) > 1 {
		return nil, fault.New(fault.Integrity, "key_corrupt", x.op, fmt.Errorf("%d items have this name", len(open)+len(shut)))
	}
	for _, item := range shut {
		if err := x.unlock(ctx, item); err != nil {
			return nil, err
		}
	}
	return append(open, shut...), nil
}

// wire is a value on the bus: the struct Secret of the API.
type wire struct {
	Session     dbus.ObjectPath
	Parameters  []byte // the initial vector
	Value       []byte
	ContentType string
}

func (s secrets) write(ctx context.Context, name string, value []byte) error {
	x, err := s.dial(ctx, fmt.Sprintf("keep item %q in the keyring", name))
	if err != nil {
		return err
	}
	defer x.close()
	c, err := x.collection(ctx)
	if err == nil {
		err = x.unlock(ctx, c)
	}
	if err != nil {
		return err
	}
	iv, sealed := encrypt(x.key, value)
	body, err := x.call(ctx, c, ssCollection+"CreateItem", map[string]dbus.Variant{
		ssItem + "Label": dbus.MakeVariant(ssLabel), ssItem + "Attributes": dbus.MakeVariant(attributes(name)),
	}, wire{x.path, iv, sealed, "text/plain"}, false)
	if err != nil {
		return err
	}
	item, err := arg[dbus.ObjectPath](x, body, 0)
	if err != nil || item != ssNone {
		return err
	}
	prompt, err := arg[dbus.ObjectPath](x, body, 1)
	if err == nil {
		_, err = x.prompt(ctx, prompt)
	}
	return err
}

func (s secrets) read(ctx context.Context, name string) ([]byte, error) {
	x, err := s.dial(ctx, fmt.Sprintf("read item %q of the keyring", name))
	if err != nil {
		return nil, err
	}
	defer x.close()
	items, err := x.find(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, fault.Mark(fault.New(fault.BadState, "state_missing", x.op, errors.New("there is none")), fs.ErrNotExist)
	}
	body, err := x.call(ctx, items[0], ssItem+"GetSecret", x.path)
	if err != nil {
		return nil, err
	}
	parts, err := arg[[]any](x, body, 0)
	if err != nil {
		return nil, err
	}
	iv, err := arg[[]byte](x, parts, 1)
	if err != nil {
		return nil, err
	}
	sealed, err := arg[[]byte](x, parts, 2)
	if err != nil {
		return nil, err
	}
	if parts[0] != x.path || len(sealed) > maxValue {
		return nil, x.malformed(errors.New("a value of another session, or too long"))
	}
	value, err := decrypt(x.key, iv, sealed)
	if err != nil {
		return nil, x.malformed(err)
	}
	return value, nil
}

func (s secrets) remove(ctx context.Context, name string) error {
	x, err := s.dial(ctx, fmt.Sprintf("remove item %q of the keyring", name))
	if err != nil {
		return err
	}
	defer x.close()
	items, err := x.find(ctx, name)
	for _, item := range items {
		body, e := x.call(ctx, item, ssItem+"Delete")
		if e != nil {
			return e
		}
		prompt, e := arg[dbus.ObjectPath](x, body, 0)
		if e == nil && prompt != ssNone {
			_, e = x.prompt(ctx, prompt)
		}
		if e != nil {
			return e
		}
	}
	return err
}

// dialBus connects to the session bus, which must be this user's. Only Unix sockets will do: the
// other addresses of D-Bus start programs, or leave the host.
func dialBus(ctx context.Context, op string) (net.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	hint := "DBUS_SESSION_BUS_ADDRESS names the bus; a service and a login by ssh mostly have none"
	list := busAddresses(os.Getenv)
	if len(list) == 0 {
		return nil, absent(op, errors.New("there is no session bus"), hint)
	}
	var last error
	for _, address := range list {
		c, err := new(net.Dialer).DialContext(bounded, "unix", address)
		if err == nil {
			if err = peer(c.(*net.UnixConn)); err == nil {
				return c, nil
			}
			c.Close()
		}
		last = fmt.Errorf("the bus at %q: %w", address, err)
	}
	if ctx.Err() != nil {
		return nil, gaveUp(op, ctx.Err())
	}
	return nil, absent(op, last, hint)
}

// peer refuses a bus of another user: a socket without a path belongs to whoever was first.
func peer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("getsockopt SO_PEERCRED: %w", credErr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, this is user %d", cred.Uid, os.Geteuid())
	}
	return nil
}

// busAddresses returns the Unix sockets of the session bus, in the order to try, as package net
// names them. The grammar is the D-Bus specification's "Server Addresses".
func busAddresses(getenv func(string) string) []string {
	run := getenv("XDG_RUNTIME_DIR")
	var out []string
	for one := range strings.SplitSeq(getenv("DBUS_SESSION_BUS_ADDRESS"), ";") {
		kind, rest, _ := strings.Cut(one, ":")
		if kind != "unix" {
			continue
		}
		for pair := range strings.SplitSeq(rest, ",") {
			key, value, _ := strings.Cut(pair, "=")
			value, err := unescape(value)
			switch {
			case err != nil || value == "":
			case key == "path" && filepath.IsAbs(value):
				out = append(out, value)
			case key == "abstract":
				out = append(out, "@"+value)
			case key == "runtime" && value == "yes" && filepath.IsAbs(run):
				out = append(out, filepath.Join(run, "bus"))
			}
		}
	}
	if getenv("DBUS_SESSION_BUS_ADDRESS") == "" && filepath.IsAbs(run) {
		if _, err := os.Stat(filepath.Join(run, "bus")); err == nil {
			out = append(out, filepath.Join(run, "bus"))
		}
	}
	return out
}

// unescape reads a value of an address, in which %XX is a byte.
func unescape(s string) (string, error) {
	var b bytes.Buffer
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 > len(s) {
			return "", errors.New("an escape is cut")
		}
		n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil || n == 0 {
			return "", errors.New("no byte")
		}
		b.WriteByte(byte(n))
		i += 2
	}
	return b.String(), nil
}
