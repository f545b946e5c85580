package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/receiptfile"
	"palyra/cmd/internal/settings"
	"palyra/crypt/keyring/backend"
	"palyra/crypt/receipt"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	socket "palyra/hub/place"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// maxKeyLine bounds the files of identities and passphrases, in bytes.
const maxKeyLine = 4096

// vaultKey returns the path of the identity's file.
func (a *app) vaultKey(inv *command.Invocation) (string, error) {
	if path := command.Value(inv, "key", ""); path != "" {
		return filepath.Abs(path)
	}
	config, err := a.config()
	return filepath.Join(config, "palyra", "vault.key"), err
}

// vaultHere reports whether a command is about the vault of a state directory and not of palyrad.
// As for palyra exec, the socket of this user's palyrad decides, and not an answer.
func (a *app) vaultHere(inv *command.Invocation) bool {
	for _, flag := range []string{"socket", "url", "token-file", "device"} {
		if inv.Has(flag) {
			return false
		}
	}
	for _, flag := range []string{"no-daemon", "state", "policy", "key", "passphrase"} {
		if inv.Has(flag) {
			return true
		}
	}
	return socket.OwnSocket(a.getenv) == ""
}

// vaultOpener opens the vault for calls with secrets, with the identity that the command names.
func (a *app) vaultOpener(inv *command.Invocation, state string) kernel.VaultUser {
	return func(ctx context.Context, ledger vault.Ledger, use func(*vault.Vault) error) error {
		id, err := a.identity(ctx, inv, state)
		if err != nil {
			return err
		}
		defer id.Wipe()
		v, err := vault.Open(ctx, filepath.Join(state, "vault"), ledger, id)
		if err != nil {
			return err
		}
		defer v.Close()
		return use(v)
	}
}

func passphrase(path string) (*seal.Passphrase, error) {
	return labelled("passphrase", path)
}

// labelled reads a passphrase that is the recipient of a label.
func labelled(label, path string) (*seal.Passphrase, error) {
	b, err := durable.ReadPrivate(path, maxKeyLine)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return seal.NewPassphrase(label, bytes.TrimSuffix(b, []byte("\n")))
}

func keyOnStdout(path string) error {
	return fault.New(fault.Usage, "bad_file", fmt.Sprintf("write identity %q", path), errors.New("a key goes to a file, not to standard output"))
}

// newIdentity makes an identity and writes it to a new file, which lies outside state.
func newIdentity(path, state, label string) (*seal.IdentityKey, *seal.PublicKey, error) {
	op := fmt.Sprintf("write identity %q", path)
	if filepath.Base(path) == "-" {
		return nil, nil, keyOnStdout(path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	dir := filepath.Dir(path)
	if err := durable.MkdirAll0700(dir); err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	if real, err := filepath.EvalSymlinks(dir); err != nil {
		return nil, nil, durable.Fault(op, err)
	} else if root, err := filepath.EvalSymlinks(state); err == nil && (real == root || strings.HasPrefix(real, root+"/")) {
		return nil, nil, fault.New(fault.BadState, "unsafe_file", op, errors.New("it would lie beside what it opens")).
			WithHint("name a file outside the state directory")
	}
	id, err := seal.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	pub, err := id.Recipient(label)
	if err != nil {
		return nil, nil, err
	}
	line := id.Encode()
	defer clear(line)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, nil, fault.New(fault.BadState, "exists", op, errors.New("the file is there already")).WithHint("move it away, or name another")
	}
	if err == nil {
		err = fill(f, line)
	}
	if err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	return id, pub, nil
}

// fill writes a new file and closes it. A part of it doesn't stay.
func fill(f *os.File, b []byte) error {
	_, err := f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = durable.SyncDir(filepath.Dir(f.Name()))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// gone reports whether the vault in dir wasn't made and opens for nothing: then its identities go,
// too. A head that the journal wasn't told of is a vault all the same.
func gone(dir string, err error) bool {
	_, e := os.Lstat(filepath.Join(dir, "head"))
	return errors.Is(e, fs.ErrNotExist) || errors.Is(err, fault.ErrExists)
}

func (a *app) vaultInit(ctx context.Context, inv *command.Invocation) (_ *front.Report, err error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	k, err := a.open(ctx, kernel.Config{Unlock: a.unlock(inv), StateDir: state})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	dir := filepath.Join(state, "vault")
	keeper, err := backend.Take(dir) // one init at a time
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, keeper.Close()) }()
	if _, err := os.Lstat(filepath.Join(dir, "head")); err == nil {
		return nil, fault.New(fault.BadState, "exists", fmt.Sprintf("create vault %q", dir), errors.New("there is one already"))
	}
	var id seal.Identity
	var to []seal.Recipient
	text := ""
	if path := command.Value(inv, "passphrase", ""); path != "" {
		p, err := passphrase(path)
		if err != nil {
			return nil, err
		}
		id, to = p, append(to, p)
	}
	var made []string
	own := false // an identity was kept for the vault
	defer func() {
		if err == nil || !gone(dir, err) {
			return
		}
		for _, path := range made {
			_ = os.Remove(path)
		}
		if own {
			err = errors.Join(err, keeper.Forget(ctx))
		}
	}()
	fields := front.Document{}
	if inv.Has("key") || inv.Has("backend") || id == nil {
		p, passed, err := a.choose(ctx, inv, command.Value(inv, "backend", backend.Auto))
		if err != nil {
			return nil, err
		}
		key, err := keeper.Init(ctx, p, inv.Has("allow-beside"))
		if err != nil {
			return nil, err
		}
		id, own = key, true
		pub, err := key.Recipient("owner")
		if err != nil {
			return nil, err
		}
		to = append(to, pub)
		text += passed + "owner " // of the line that says where
	}
	if path := command.Value(inv, "recovery", ""); path != "" {
		key, pub, err := newIdentity(path, state, "recovery")
		if err != nil {
			return nil, err
		}
		key.Wipe()
		made, to = append(made, path), append(to, pub)
	}
	defer id.Wipe()
	v, err := vault.Create(ctx, dir, k.VaultLedger(), id, to...)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	if own {
		line, more, err := kept(dir)
		if err != nil {
			return nil, err
		}
		text += line
		maps.Copy(fields, more)
	}
	for _, path := range made {
		text += fmt.Sprintf("recovery identity: %s\nkeep it away from this host\n", front.OneLine(path))
	}
	fields["vault"], fields["recipients"], fields["recovery"] = v.ID(), v.Labels(), append([]string{}, made...)
	return &front.Report{Text: "made vault " + v.ID() + "\n" + text, Fields: fields}, nil
}

// vaultCall makes one call of a tool for secrets. beside has what comes beside its input.
func (a *app) vaultCall(ctx context.Context, inv *command.Invocation, name string, input any, beside tool.Beside) (_ *tool.VaultDone, _ *kernel.Outcome, err error) {
	state, cell, program, err := a.callsOf(inv)
	if err != nil {
		return nil, nil, err
	}
	id, err := a.identity(ctx, inv, state)
	if err != nil {
		return nil, nil, err
	}
	defer id.Wipe()
	line, err := canon.Marshal(input)
	if err != nil {
		return nil, nil, err
	}
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err != nil {
		return nil, nil, err
	}
	defer kept.Close()
	var k *kernel.Kernel
	var done *tool.VaultDone
	door := &tool.Vault{Open: func(ctx context.Context) (*vault.Vault, error) {
		return vault.Open(ctx, filepath.Join(state, "vault"), k.VaultLedger(), id)
	}}
	beside.Done = func(d tool.VaultDone) { done = &d }
	if k, err = a.open(ctx, kernel.Config{
		Unlock: a.unlock(inv), StateDir: state, PolicyDir: command.Value(inv, "policy", ""), CellPath: cell, Warm: tier.C, Once: true, Approver: a.approver(),
		Tools: tool.New(tool.Config{Program: program, Vault: door}),
	}); err != nil {
		return nil, nil, err
	}
	var stdout bytes.Buffer
	out, err := k.Call(tool.WithBeside(ctx, &beside), kernel.Proposal{Tool: name, Input: line}, kernel.IO{Stdout: &stdout, Stderr: io.Discard})
	if err = errors.Join(err, k.Close()); err == nil {
		err = kept.Keep(out.Receipt, out.LogIndex, 0o644)
	}
	if err == nil && (done == nil || out.Outcome != receipt.Executed) {
		err = notDone(name, out, stdout.Bytes())
	}
	if err != nil && done != nil {
		done.Secret.Wipe()
	}
	return done, out, err
}

func (a *app) vaultSet(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	in := &toolproto.VaultSetInput{Ref: operand(inv), Expires: command.Value(inv, "expires", "")}
	if _, err := vault.ParseRef(in.Ref); err != nil { // before standard input is read
		return nil, err
	}
	var values []*seal.Secret
	short := false
	if inv.Command.Name == "vault rollback" {
		n, err := strconv.ParseInt(inv.Operands[1], 10, 64)
		if err != nil || n < 1 {
			return nil, fault.New(fault.Usage, "invalid_input", "read version", fmt.Errorf("%q is no number of a version", inv.Operands[1]))
		}
		in.From = n
	} else {
		b, err := settings.ReadValue(command.Value(inv, "file", ""), a.stdin, inv.Has("exact"))
		if err != nil {
			return nil, err
		}
		value := seal.NewSecret(b)
		clear(b)
		defer value.Wipe()
		values = append(values, value)
		short = len(value.Bytes()) < vault.MinScrubbed
	}
	done, out, err := a.vaultCall(ctx, inv, toolproto.VaultSet, in, tool.Beside{Values: values})
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("stored version %d of %s\n", done.Info.Version, in.Ref)
	if short {
		text += fmt.Sprintf("it has less than %d bytes: short enough to be guessed, and too short to be told from other text\n", vault.MinScrubbed)
	}
	return &front.Report{Text: text, Fields: front.Document{"ref": in.Ref, "version": done.Info.Version, "short": short, "call_id": out.CallID, "log_index": out.LogIndex}}, nil
}

func (a *app) vaultGet(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	version := command.Value(inv, "version", int64(0))
	if !inv.Has("reveal") {
		return a.vaultDescribe(ctx, inv, version)
	}
	done, out, err := a.vaultCall(ctx, inv, toolproto.VaultGet, &toolproto.VaultGetInput{Ref: operand(inv), Version: version}, tool.Beside{})
	if err != nil {
		return nil, err
	}
	defer done.Secret.Wipe()
	if inv.Has("json") {
		return &front.Report{Fields: front.Document{"ref": operand(inv), "version": done.Info.Version, "call_id": out.CallID, "log_index": out.LogIndex,
			"value": front.Document{"encoding": "base64", "data": base64.StdEncoding.EncodeToString(done.Secret.Bytes())}}}, nil
	}
	if _, err := a.stdout.Write(done.Secret.Bytes()); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "write the value", err)
	}
	return &front.Report{}, nil
}

// vaultDescribe says what there is of one version.
func (a *app) vaultDescribe(ctx context.Context, inv *command.Invocation, version int64) (*front.Report, error) {
	done, _, err := a.vaultCall(ctx, inv, toolproto.VaultList, &toolproto.VaultListInput{Ref: operand(inv)}, tool.Beside{})
	if err != nil {
		return nil, err
	}
	for i := len(done.List) - 1; i >= 0; i-- {
		if x := done.List[i]; version == 0 || x.Version == uint64(version) {
			d := vaultRow(x)
			return &front.Report{Text: fmt.Sprintf("%s version %d: %d bytes, made %s, expires %s\nits value: --reveal\n", x.Ref, x.Version, x.Size, d["made"], d["expires"]), Fields: d}, nil
		}
	}
	return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("find secret %q", operand(inv)), fmt.Errorf("there is no version %d", version))
}

func vaultRow(i vault.Info) front.Document {
	expires := "never"
	if i.Expires != nil {
		expires = i.Expires.Format(time.RFC3339)
	}
	return front.Document{"ref": i.Ref.String(), "version": i.Version, "size": i.Size, "made": i.Created.Format(time.RFC3339), "expires": expires}
}

func (a *app) vaultLs(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	in := &toolproto.VaultListInput{}
	if len(inv.Operands) > 0 {
		in.Ref = operand(inv)
	}
	done, _, err := a.vaultCall(ctx, inv, toolproto.VaultList, in, tool.Beside{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("SECRET", "VERSION", "SIZE", "MADE", "EXPIRES").Keep(0)
	all := []front.Document{}
	for _, i := range done.List {
		d := vaultRow(i)
		t.Row(i.Ref.String(), strconv.FormatUint(i.Version, 10), strconv.Itoa(i.Size), d["made"].(string), d["expires"].(string))
		all = append(all, d)
	}
	return &front.Report{Text: t.Text(a.width(inv)), Fields: front.Document{"secrets": all}}, nil
}

func (a *app) vaultRm(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	_, out, err := a.vaultCall(ctx, inv, toolproto.VaultRemove, &toolproto.VaultRemoveInput{Ref: operand(inv)}, tool.Beside{})
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: "removed " + operand(inv) + "\n", Fields: front.Document{"ref": operand(inv), "call_id": out.CallID, "log_index": out.LogIndex}}, nil
}

func (a *app) vaultRotate(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	return a.rotate(ctx, inv, command.All[string](inv, "drop"), inv.Has("values"))
}

// rotate makes a new key, for all recipients but those of drop, and one for each value if they are
// to have new ones, too.
func (a *app) rotate(ctx context.Context, inv *command.Invocation, drop []string, values bool) (*front.Report, error) {
	_, out, err := a.vaultCall(ctx, inv, toolproto.VaultRotate, &toolproto.VaultRotateInput{Drop: drop, Values: values}, tool.Beside{})
	if err != nil {
		return nil, err
	}
	text := "the vault has a new key\n"
	if values {
		text = "the vault and its values have new keys\n"
	}
	return &front.Report{Text: text, Fields: front.Document{"dropped": append([]string{}, drop...), "call_id": out.CallID, "log_index": out.LogIndex}}, nil
}

func (a *app) vaultVerify(ctx context.Context, inv *command.Invocation) (r *front.Report, err error) {
	err = a.openVault(ctx, inv, func(v *vault.Vault) error {
		n, err := v.Check(ctx)
		if err != nil {
			return err
		}
		state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
		if err != nil {
			return err
		}
		line, fields, err := kept(filepath.Join(state, "vault"))
		if err != nil {
			return err
		}
		maps.Copy(fields, front.Document{"vault": v.ID(), "epoch": v.Epoch(), "versions": n, "recipients": v.Labels(), "opened_by": v.OpenedBy(), "stale": v.Stale()})
		if n := v.Stale(); n > 0 {
			line += fmt.Sprintf("%d versions wait for new keys: the next changes give them\n", n)
		}
		r = &front.Report{Text: fmt.Sprintf("vault %s at epoch %d: %d versions open, and the journal knows it so\nrecipients: %s; %s opened it\n%s", v.ID(), v.Epoch(), n, strings.Join(v.Labels(), ", "), v.OpenedBy(), line), Fields: fields}
		return nil
	})
	return r, err
}

// openVault does f on the vault without a call: f gives out no name and no value.
func (a *app) openVault(ctx context.Context, inv *command.Invocation, f func(v *vault.Vault) error) (err error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return err
	}
	id, err := a.identity(ctx, inv, state)
	if err != nil {
		return err
	}
	defer id.Wipe()
	k, err := a.open(ctx, kernel.Config{Unlock: a.unlock(inv), StateDir: state})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	v, err := vault.Open(ctx, filepath.Join(state, "vault"), k.VaultLedger(), id)
	if err != nil {
		return err
	}
	defer v.Close()
	return f(v)
}
