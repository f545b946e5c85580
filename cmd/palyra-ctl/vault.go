package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/receiptfile"
	"palyra/cmd/internal/settings"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// palyra vault where the user has a palyrad: the commands become operations of palyrad's, with the
// words and documents of palyra's own.

// vaultHub connects to the palyrad that keeps the vault.
func (a *app) vaultHub(inv *command.Invocation) (hub.Hub, error) {
	for _, flag := range []string{"state", "policy", "key", "passphrase", "no-daemon", "identity"} {
		if inv.Has(flag) {
			return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, fmt.Errorf("palyrad's vault has no --%s", flag)).
				WithHint("leave it out, or --socket, --url, --token-file and --device; an export is decrypted by age -d")
		}
	}
	socket := place.OwnSocket(a.getenv)
	if socket == "" || inv.Has("socket") || inv.Has("url") || inv.Has("token-file") || inv.Has("device") {
		return a.connect(inv)
	}
	fmt.Fprintf(a.stderr, "palyra: the palyrad at %s decides and does this; --no-daemon has palyra do it\n", cell(socket))
	return a.dial(connect.Target{Socket: socket, Own: true})
}

// vaultDo does an operation of the vault in a session of its own, and asks the person at this
// terminal about its call, if they may answer.
func vaultDo[In any](ctx context.Context, a *app, inv *command.Invocation, op hub.Op[In, hub.VaultResult], in func(session string) In) (out hub.VaultResult, err error) {
	return attendedDo(ctx, a, inv, a.vaultHub, op, func(r *hub.VaultResult) *hub.Run { return &r.Run }, in)
}

// attendedDo does an operation that is one call, whose run its result has, at the hub that connect
// gives. The flag --receipt names a file for the receipt.
func attendedDo[In, Out any](ctx context.Context, a *app, inv *command.Invocation, connect func(*command.Invocation) (hub.Hub, error),
	op hub.Op[In, Out], run func(*Out) *hub.Run, in func(session string) In) (out Out, err error) {
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err != nil {
		return out, err
	}
	defer kept.Close()
	h, err := connect(inv)
	if err != nil {
		return out, err
	}
	*run(&out), err = a.attended(ctx, inv, h, kept, func(ctx context.Context, session string) (hub.Run, error) {
		out, err = op.Do(ctx, h, hub.Caller{}, in(session))
		return *run(&out), err
	})
	return out, err
}

// attended has call make one call in a session of its own, and asks the person at this terminal
// about it, if they may answer. kept gets its receipt; nil: none is wanted.
func (a *app) attended(ctx context.Context, inv *command.Invocation, h hub.Hub, kept *receiptfile.File, call func(ctx context.Context, session string) (hub.Run, error)) (out hub.Run, err error) {
	s, err := hub.CreateSession.Do(ctx, h, hub.Caller{}, hub.NewSession{Title: "palyra " + inv.Command.Name})
	if err != nil {
		return out, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
	defer cancel()
	defer func() {
		end, cancel := context.WithTimeout(end, cleanup)
		defer cancel()
		// An open, empty session does no harm.
		_, _ = hub.EndSession.Do(end, h, hub.Caller{}, hub.SessionChange{ID: s.ID})
	}()
	asking, over := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.askWhenItWaits(asking, h, s.ID)
	}()
	out, err = call(ctx, s.ID)
	over()
	<-done
	if err != nil {
		return out, err
	}
	if len(out.Steps) == 0 { // palyrad had no room for them in its answer
		if out, err = hub.GetRun.Do(end, h, hub.Caller{}, out.ID); err != nil {
			return out, err
		}
	}
	if len(out.Steps) != 1 {
		return out, fault.New(fault.Internal, "internal", inv.Command.Name, fmt.Errorf("a run of %d steps", len(out.Steps)))
	}
	st := &out.Steps[0]
	if kept != nil && st.LogIndex != nil {
		b, err := hub.GetReceipt.Do(end, h, hub.Caller{}, *st.LogIndex)
		if err == nil {
			err = kept.Keep(b, *st.LogIndex, 0o644)
		}
		if err != nil {
			return out, err
		}
	}
	return out, vaultFault(st)
}

// askWhenItWaits looks for a request about the session's call until ctx is done, and asks once.
func (a *app) askWhenItWaits(ctx context.Context, h hub.Hub, session string) {
	for {
		p, err := hub.ListApprovals.Do(ctx, h, hub.Caller{}, hub.ApprovalQuery{Session: session, State: hub.ApprovalPending})
		if err == nil && len(p.Items) > 0 {
			a.askHere(ctx, h, p.Items[0].ID, nil)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// vaultKinds are the kinds of reasons of a call that wasn't decided, or that was refused.
var vaultKinds = map[fault.Code]fault.Kind{fault.ErrNotFound: fault.NotFound, fault.ErrInvalidInput: fault.Usage, fault.ErrTooLarge: fault.Usage,
	fault.ErrSecretExpired: fault.Refused, fault.ErrRolledBack: fault.Integrity, fault.ErrStoreCorrupt: fault.Integrity, fault.ErrKeysLocked: fault.Denied,
	fault.ErrChanged: fault.Busy, fault.ErrQuota: fault.Unavailable}

// vaultFault says why a call did nothing, nil if it did.
func vaultFault(s *hub.StepResult) error {
	kind, reason, text := fault.Refused, s.Reason, s.Error
	if k, ok := vaultKinds[fault.Code(s.Reason)]; ok {
		kind = k
	}
	switch s.Outcome {
	case "executed":
		if s.Exit == 0 {
			return nil
		}
		text = "its program failed, and what it was to do may be done"
	case "denied":
		kind = fault.Denied
	case "not_approved":
		kind = fault.NotApproved
	}
	if reason == "" { // the caller may not read policy
		reason = map[string]string{"denied": "policy_denied", "not_approved": "denied"}[s.Outcome]
	}
	if text == "" {
		text = "the call is " + s.Outcome
	}
	f := fault.New(kind, reason, s.Tool, errors.New(text))
	hint := s.Hint
	if hint == "" {
		hint = fault.Do(reason)
	}
	return f.WithHint(hint)
}

// withCall adds where the receipt of a result is to a document.
func withCall(r *hub.VaultResult, d front.Document) front.Document {
	d["call_id"], d["log_index"] = r.Run.Steps[0].CallID, r.Run.Steps[0].LogIndex
	return d
}

func (a *app) vaultSet(ctx context.Context, inv *command.Invocation) (*result, error) {
	value, err := settings.ReadValue(command.Value(inv, "file", ""), a.stdin, inv.Has("exact"))
	if err != nil {
		return nil, err
	}
	defer clear(value)
	ref := inv.Operands[0]
	r, err := vaultDo(ctx, a, inv, hub.SetSecret, func(session string) hub.SecretValue {
		return hub.SecretValue{Session: session, Ref: ref, Value: value, Expires: command.Value(inv, "expires", "")}
	})
	if err != nil {
		return nil, err
	}
	return stored(&r, len(value) < settings.MinScrubbed)
}

// stored says which version of the one secret there is now.
func stored(r *hub.VaultResult, short bool) (*result, error) {
	if len(r.Secrets) != 1 {
		return nil, fault.New(fault.Internal, "internal", "store secret", fmt.Errorf("palyrad names %d", len(r.Secrets)))
	}
	s := r.Secrets[0]
	say := fmt.Sprintf("stored version %d of %s\n", s.Version, front.OneLine(s.Ref))
	if short {
		say += fmt.Sprintf("it has less than %d bytes: short enough to be guessed, and too short to be told from other text\n", settings.MinScrubbed)
	}
	return text(withCall(r, front.Document{"ref": s.Ref, "version": s.Version, "short": short}), "%s", say), nil
}

func (a *app) vaultRollback(ctx context.Context, inv *command.Invocation) (*result, error) {
	n, err := strconv.ParseUint(inv.Operands[1], 10, 62)
	if err != nil || n < 1 {
		return nil, fault.New(fault.Usage, "invalid_input", "read version", fmt.Errorf("%q is no number of a version", inv.Operands[1]))
	}
	r, err := vaultDo(ctx, a, inv, hub.RollBackSecret, func(session string) hub.SecretRollback {
		return hub.SecretRollback{Session: session, Ref: inv.Operands[0], Version: n, Expires: command.Value(inv, "expires", "")}
	})
	if err != nil {
		return nil, err
	}
	return stored(&r, false)
}

func vaultRow(s *hub.SecretInfo) front.Document {
	expires := "never"
	if s.Expires != nil {
		expires = s.Expires.Format(time.RFC3339)
	}
	return front.Document{"ref": s.Ref, "version": s.Version, "size": s.Size, "made": s.Created.Format(time.RFC3339), "expires": expires}
}

func (a *app) vaultGet(ctx context.Context, inv *command.Invocation) (*result, error) {
	version := uint64(command.Value(inv, "version", int64(0)))
	ref := inv.Operands[0]
	if !inv.Has("reveal") {
		r, err := vaultDo(ctx, a, inv, hub.ListSecrets, func(session string) hub.SecretQuery { return hub.SecretQuery{Session: session, Ref: ref} })
		if err != nil {
			return nil, err
		}
		for i := len(r.Secrets) - 1; i >= 0; i-- {
			if s := &r.Secrets[i]; version == 0 || s.Version == version {
				d := vaultRow(s)
				return text(d, "%s version %d: %d bytes, made %s, expires %s\nits value: --reveal\n", front.OneLine(s.Ref), s.Version, s.Size, d["made"], d["expires"]), nil
			}
		}
		return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("find secret %q", ref), fmt.Errorf("there is no version %d", version))
	}
	r, err := vaultDo(ctx, a, inv, hub.RevealSecret, func(session string) hub.SecretVersion {
		return hub.SecretVersion{Session: session, Ref: ref, Version: version}
	})
	defer clear(r.Value)
	if err != nil {
		return nil, err
	}
	if len(r.Secrets) != 1 {
		return nil, fault.New(fault.Internal, "internal", "reveal secret", fmt.Errorf("palyrad names %d", len(r.Secrets)))
	}
	if inv.Has("json") {
		return text(withCall(&r, front.Document{"ref": ref, "version": r.Secrets[0].Version,
			"value": front.Document{"encoding": "base64", "data": base64.StdEncoding.EncodeToString(r.Value)}}), ""), nil
	}
	if _, err := a.stdout.Write(r.Value); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", "write the value", err)
	}
	return &result{streamed: true}, nil
}

func (a *app) vaultLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	ref := ""
	if len(inv.Operands) > 0 {
		ref = inv.Operands[0]
	}
	r, err := vaultDo(ctx, a, inv, hub.ListSecrets, func(session string) hub.SecretQuery { return hub.SecretQuery{Session: session, Ref: ref} })
	if err != nil {
		return nil, err
	}
	t := front.NewTable("SECRET", "VERSION", "SIZE", "MADE", "EXPIRES").Keep(0)
	all := []front.Document{}
	for i := range r.Secrets {
		d := vaultRow(&r.Secrets[i])
		t.Row(r.Secrets[i].Ref, strconv.FormatUint(r.Secrets[i].Version, 10), strconv.Itoa(r.Secrets[i].Size), d["made"].(string), d["expires"].(string))
		all = append(all, d)
	}
	return text(front.Document{"secrets": all}, "%s", a.table(inv, t)), nil
}

func (a *app) vaultRm(ctx context.Context, inv *command.Invocation) (*result, error) {
	r, err := vaultDo(ctx, a, inv, hub.RemoveSecret, func(session string) hub.SecretName { return hub.SecretName{Session: session, Ref: inv.Operands[0]} })
	if err != nil {
		return nil, err
	}
	return text(withCall(&r, front.Document{"ref": inv.Operands[0]}), "removed %s\n", front.OneLine(inv.Operands[0])), nil
}

func (a *app) vaultRotate(ctx context.Context, inv *command.Invocation) (*result, error) {
	return a.vaultDrop(ctx, inv, command.All[string](inv, "drop"), inv.Has("values"))
}

func (a *app) vaultDrop(ctx context.Context, inv *command.Invocation, drop []string, values bool) (*result, error) {
	r, err := vaultDo(ctx, a, inv, hub.RotateVault, func(session string) hub.VaultRotation {
		return hub.VaultRotation{Session: session, Drop: drop, Values: values}
	})
	if err != nil {
		return nil, err
	}
	said := "the vault has a new key\n"
	if values {
		said = "the vault and its values have new keys\n"
	}
	return text(withCall(&r, front.Document{"dropped": append([]string{}, drop...)}), "%s", said), nil
}

func (a *app) vaultVerify(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.vaultHub(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.VerifyVault.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	labels := []string{}
	for _, r := range s.Recipients {
		labels = append(labels, r.Label+" ("+r.Type+")")
	}
	stale := ""
	if s.Stale > 0 {
		stale = fmt.Sprintf("%d versions wait for new keys: the next changes give them\n", s.Stale)
	}
	return text(front.Document{"vault": s.Vault, "epoch": s.Epoch, "versions": s.Versions, "stale": s.Stale, "recipients": labels, "opened_by": s.OpenedBy},
		"vault %s at epoch %d: %d versions open, and the journal knows it so\nrecipients: %s; %s opened it\n%s", cell(s.Vault), s.Epoch, s.Versions, front.OneLine(strings.Join(labels, ", ")), cell(s.OpenedBy), stale), nil
}

func (a *app) vaultRecipients(ctx context.Context, inv *command.Invocation) (*result, error) {
	verb := ""
	if len(inv.Operands) > 0 {
		verb = inv.Operands[0]
	}
	switch {
	case verb == "rm" && len(inv.Operands) > 1:
		return a.vaultDrop(ctx, inv, inv.Operands[1:], false)
	case verb == "add" && len(inv.Operands) == 3 && command.Value(inv, "type", "") != "argon2id":
		return a.recipientsAdd(ctx, inv, inv.Operands[1], inv.Operands[2])
	case verb == "add" && len(inv.Operands) == 3:
		return nil, fault.New(fault.Usage, "bad_command", "vault recipients", errors.New("no passphrase goes to palyrad, which needs none: it would open the vault for good")).
			WithHint("palyra vault recipients add --no-daemon, on palyrad's host and state directory; or add a public key")
	case verb != "" && verb != "ls" || len(inv.Operands) > 1:
		return nil, fault.New(fault.Usage, "bad_command", "vault recipients", errors.New("want ls, add LABEL FILE, or rm LABEL")).
			WithHint("palyra help vault recipients")
	}
	h, err := a.vaultHub(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.GetVault.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("LABEL", "TYPE", "ID").Keep(0, 2)
	all := []front.Document{}
	for _, r := range s.Recipients {
		d := front.Document{"label": r.Label, "type": r.Type}
		id := "-"
		if r.ID != "" {
			id = r.ID
			d["id"] = id
		}
		t.Row(r.Label, r.Type, id)
		all = append(all, d)
	}
	return text(front.Document{"recipients": all}, "%s", a.table(inv, t)), nil
}

// recipientsAdd sends palyrad the line of a public key.
func (a *app) recipientsAdd(ctx context.Context, inv *command.Invocation, label, path string) (*result, error) {
	const maxLine = 4096
	op := fmt.Sprintf("read recipient %q", path)
	f, err := settings.OpenRegular(op, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLine))
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	if !strings.HasPrefix(string(b), "palyra-recipient-1:") { // a file of another kind, an identity's maybe, stays here
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("not a line of a recipient"))
	}
	r, err := vaultDo(ctx, a, inv, hub.AddVaultRecipient, func(session string) hub.NewVaultRecipient {
		return hub.NewVaultRecipient{Session: session, Label: label, Recipient: string(b)}
	})
	if err != nil {
		return nil, err
	}
	return text(withCall(&r, front.Document{"label": label, "type": "hpke-mlkem768-x25519"}), "%s opens the vault, too\n", front.OneLine(label)), nil
}

func (a *app) vaultImport(ctx context.Context, inv *command.Invocation) (*result, error) {
	f := settings.Format{Name: command.Value(inv, "format", ""), Scope: command.Value(inv, "scope", "global")}
	switch {
	case f.Name == "":
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("--format is missing")).WithHint("--format dotenv, --format env, or --format export")
	case f.Name == settings.Export && inv.Has("scope"):
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("an export has the scopes of its secrets, and --scope is for others"))
	case inv.Has("identity"):
		return nil, fault.New(fault.Usage, "bad_command", "vault import", errors.New("no identity of age goes to palyrad")).
			WithHint("age -d -i KEY FILE | palyra vault import --format export -")
	}
	path := inv.Operands[0]
	all, err := settings.Read(fmt.Sprintf("import %q", path), path, a.stdin, f)
	if err != nil {
		return nil, err
	}
	defer all.Wipe()
	var say strings.Builder
	rows := []front.Document{}
	var secrets []hub.NewSecret
	for _, s := range all {
		rows = append(rows, front.Document{"ref": s.Ref, "size": len(s.Value), "short": len(s.Value) < settings.MinScrubbed})
		secrets = append(secrets, hub.NewSecret{Ref: s.Ref, Value: s.Value, Expires: s.Expires})
		if inv.Has("dry-run") {
			fmt.Fprintf(&say, "would store %s, %d bytes\n", front.OneLine(s.Ref), len(s.Value))
		}
	}
	d := front.Document{"dry_run": inv.Has("dry-run"), "secrets": rows}
	if !inv.Has("dry-run") {
		r, err := vaultDo(ctx, a, inv, hub.ImportSecrets, func(session string) hub.SecretImport { return hub.SecretImport{Session: session, Secrets: secrets} })
		if err != nil {
			return nil, err
		}
		for i, s := range r.Secrets {
			fmt.Fprintf(&say, "stored version %d of %s\n", s.Version, front.OneLine(s.Ref))
			if i < len(rows) {
				rows[i]["version"] = s.Version
			}
		}
		withCall(&r, d)
	}
	for _, row := range rows {
		if row["short"] == true {
			fmt.Fprintf(&say, "%s has less than %d bytes: short enough to be guessed\n", front.OneLine(row["ref"].(string)), settings.MinScrubbed)
		}
	}
	if !inv.Has("dry-run") && path != "-" {
		fmt.Fprintf(&say, "%s has the values still\n", front.OneLine(path))
	}
	return text(d, "%s", say.String()), nil
}

func (a *app) vaultExport(ctx context.Context, inv *command.Invocation) (*result, error) {
	to, path := command.Value(inv, "to", ""), inv.Operands[0]
	if to == "" {
		return nil, fault.New(fault.Usage, "bad_command", "vault export", errors.New("--to is missing")).WithHint("--to age1..., as age-keygen prints it")
	}
	f, err := settings.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := vaultDo(ctx, a, inv, hub.ExportSecrets, func(session string) hub.SecretExport {
		return hub.SecretExport{Session: session, To: to, Refs: inv.Operands[1:]}
	})
	if err != nil {
		return nil, err
	}
	if err := f.Keep(r.File); err != nil {
		return nil, err
	}
	var say strings.Builder
	all := []front.Document{}
	for i := range r.Secrets {
		fmt.Fprintf(&say, "exported version %d of %s\n", r.Secrets[i].Version, front.OneLine(r.Secrets[i].Ref))
		all = append(all, vaultRow(&r.Secrets[i]))
	}
	return text(withCall(&r, front.Document{"to": to, "file": path, "secrets": all}), "%s", say.String()), nil
}
