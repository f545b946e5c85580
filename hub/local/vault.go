package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/internal/toolproto"
	"palyra/kernel/tool"
)

// vaultOperations returns the operations of the vault.
func (h *Hub) vaultOperations() []hub.Entry {
	return []hub.Entry{
		hub.SetSecret.By(h.setSecret),
		hub.RollBackSecret.By(h.rollBackSecret),
		hub.RevealSecret.By(h.revealSecret),
		hub.ListSecrets.By(h.listSecrets),
		hub.RemoveSecret.By(h.removeSecret),
		hub.RotateVault.By(h.rotateVault),
		hub.AddVaultRecipient.By(h.addVaultRecipient),
		hub.ImportSecrets.By(h.importSecrets),
		hub.ExportSecrets.By(h.exportSecrets),
		hub.GetVault.By(h.getVault),
		hub.VerifyVault.By(h.verifyVault),
	}
}

// vaultShare bounds the bytes of values that requests of one principal hold: the largest export, as
// it is and encoded, and some room.
const (
	vaultShare  = 48 << 20
	exportBytes = 2 * vault.MaxExport * vault.MaxValue
)

// vaultBudget counts the values that requests hold, until they are answered.
func vaultBudget() *budget.Pool {
	return budget.New(budget.Limits{Name: "secrets", Total: 2 * vaultShare, Each: vaultShare, Reserve: vaultShare, Line: 64})
}

// handed takes what a call did from the run's goroutine. It wipes a result that comes after forget.
type handed struct {
	mu   sync.Mutex
	done *tool.VaultDone // guarded by mu
	over bool            // guarded by mu
}

func (d *handed) take(v tool.VaultDone) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		v.Secret.Wipe()
		return
	}
	d.done = &v
}

func (d *handed) get() *tool.VaultDone {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *handed) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done != nil {
		d.done.Secret.Wipe()
	}
	d.done, d.over = nil, true
}

// vaultCall makes one call of a tool for secrets, as call makes one of any tool. values come beside
// it; they are copied to locked memory, and cleared. most is how many bytes the answer may hold.
func (h *Hub) vaultCall(ctx context.Context, c hub.Caller, session, name string, input any, values [][]byte, most int64) (out hub.VaultResult, err error) {
	return h.vaultCallWith(ctx, c, session, name, input, new(tool.Beside), values, most)
}

// vaultCallWith is vaultCall with what else comes beside it.
func (h *Hub) vaultCallWith(ctx context.Context, c hub.Caller, session, name string, input any, beside *tool.Beside, values [][]byte, most int64) (out hub.VaultResult, err error) {
	defer func() {
		for _, v := range values {
			clear(v)
		}
	}()
	if name != toolproto.VaultList || c.Surface != hub.SurfaceConsole { // a list has no values
		if err := private(c, name); err != nil {
			return out, err
		}
	}
	if session != "" {
		if err := ident.Check(ident.Session, session); err != nil {
			return out, err
		}
	}
	for _, v := range values {
		most += int64(len(v))
	}
	hold, err := h.pools.secrets.Wait(ctx, h.payer(c), min(most, vaultShare))
	if err != nil {
		return out, err
	}
	defer hold.Keep(ctx)()
	line, err := canon.Marshal(input)
	if err != nil {
		return out, err
	}
	got := new(handed)
	defer got.forget()
	beside.Done, beside.Owner = got.take, h.privileged(c)
	for _, v := range values {
		beside.Values = append(beside.Values, seal.NewSecret(v))
	}
	defer func() { // the run is over by now
		for _, s := range beside.Values {
			s.Wipe()
		}
	}()
	id, err := h.once(ctx, c, session, hub.Step{Tool: name, Input: line}, func(ctx context.Context) context.Context { return tool.WithBeside(ctx, beside) })
	if err != nil {
		return out, err
	}
	if out.Run, err = h.answer(context.WithoutCancel(ctx), c, id); err != nil {
		return hub.VaultResult{}, err
	}
	out.Secrets = []hub.SecretInfo{}
	d := got.get()
	if d == nil {
		return out, nil
	}
	list := d.List
	if d.Info.Version != 0 {
		list = append(list, d.Info)
	}
	for _, i := range list {
		out.Secrets = append(out.Secrets, hub.SecretInfo{Ref: i.Ref.String(), Version: i.Version, Size: i.Size, Created: i.Created, Expires: i.Expires, By: i.By})
	}
	if d.Secret != nil {
		out.Value = bytes.Clone(d.Secret.Bytes())
	}
	out.File = d.File
	return out, nil
}

// private returns nil if the caller's connection is one that values may travel over: that of a
// process of this host whom the kernel names, or of a device with a certificate.
func private(c hub.Caller, name string) error {
	if c.Surface == surfaceUnix || c.Surface == surfaceToken || c.Device != "" {
		return nil
	}
	return fault.New(fault.Usage, "connection_not_private", "call tool "+name, errors.New("it came by another connection")).
		WithHint(fault.Do("connection_not_private"))
}

func (h *Hub) setSecret(ctx context.Context, c hub.Caller, n hub.SecretValue) (hub.VaultResult, error) {
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultSet, &toolproto.VaultSetInput{Ref: n.Ref, Expires: n.Expires}, [][]byte{n.Value}, 0)
}

func (h *Hub) rollBackSecret(ctx context.Context, c hub.Caller, n hub.SecretRollback) (hub.VaultResult, error) {
	if n.Version == 0 || n.Version > 1<<62 {
		return hub.VaultResult{}, fault.New(fault.Usage, "invalid_input", "roll back secret", fmt.Errorf("%d is no number of a version", n.Version))
	}
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultSet, &toolproto.VaultSetInput{Ref: n.Ref, From: int64(n.Version), Expires: n.Expires}, nil, vault.MaxValue)
}

func (h *Hub) revealSecret(ctx context.Context, c hub.Caller, n hub.SecretVersion) (hub.VaultResult, error) {
	if n.Version > 1<<62 {
		return hub.VaultResult{}, fault.New(fault.Usage, "invalid_input", "reveal secret", fmt.Errorf("%d is no number of a version", n.Version))
	}
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultGet, &toolproto.VaultGetInput{Ref: n.Ref, Version: int64(n.Version)}, nil, 4*vault.MaxValue) // as it is, and encoded
}

func (h *Hub) listSecrets(ctx context.Context, c hub.Caller, n hub.SecretQuery) (hub.VaultResult, error) {
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultList, &toolproto.VaultListInput{Ref: n.Ref}, nil, vault.MaxSecrets*1024)
}

func (h *Hub) removeSecret(ctx context.Context, c hub.Caller, n hub.SecretName) (hub.VaultResult, error) {
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultRemove, &toolproto.VaultRemoveInput{Ref: n.Ref}, nil, 0)
}

func (h *Hub) rotateVault(ctx context.Context, c hub.Caller, n hub.VaultRotation) (hub.VaultResult, error) {
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultRotate, &toolproto.VaultRotateInput{Drop: n.Drop, Values: n.Values}, nil, 0)
}

// addVaultRecipient takes public keys alone: a passphrase is typed where the vault lies.
func (h *Hub) addVaultRecipient(ctx context.Context, c hub.Caller, n hub.NewVaultRecipient) (none hub.VaultResult, err error) {
	to, err := seal.ParseRecipient(n.Label, []byte(strings.TrimSuffix(n.Recipient, "\n")+"\n"))
	if err != nil {
		return none, err
	}
	in := &toolproto.VaultAddRecipientInput{Label: n.Label, Type: seal.TypeHPKE, ID: to.ID().String()}
	return h.vaultCallWith(ctx, c, n.Session, toolproto.VaultAddRecipient, in, &tool.Beside{Recipient: to}, nil, 0)
}

func (h *Hub) importSecrets(ctx context.Context, c hub.Caller, n hub.SecretImport) (hub.VaultResult, error) {
	in := &toolproto.VaultImportInput{Refs: []string{}}
	var values [][]byte
	expires := false
	for _, s := range n.Secrets {
		when := s.Expires
		if when == "" {
			when = "never"
		}
		expires = expires || when != "never"
		in.Refs, in.Expires, values = append(in.Refs, s.Ref), append(in.Expires, when), append(values, s.Value)
	}
	if !expires {
		in.Expires = nil
	}
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultImport, in, values, 0)
}

func (h *Hub) exportSecrets(ctx context.Context, c hub.Caller, n hub.SecretExport) (hub.VaultResult, error) {
	return h.vaultCall(ctx, c, n.Session, toolproto.VaultExport, &toolproto.VaultExportInput{To: n.To, Refs: n.Refs}, nil, exportBytes)
}

func (h *Hub) getVault(ctx context.Context, c hub.Caller, _ hub.None) (hub.VaultState, error) {
	return h.lookIntoVault(ctx, c, func(context.Context, *vault.Vault) (int, error) { return 0, nil })
}

func (h *Hub) verifyVault(ctx context.Context, c hub.Caller, _ hub.None) (hub.VaultState, error) {
	return h.lookIntoVault(ctx, c, func(ctx context.Context, v *vault.Vault) (int, error) { return v.Check(ctx) })
}

// lookIntoVault opens the vault without a call, for what gives out no name and no value.
func (h *Hub) lookIntoVault(ctx context.Context, c hub.Caller, look func(context.Context, *vault.Vault) (int, error)) (s hub.VaultState, err error) {
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return s, err
	}
	defer over()
	err = h.k.UseVault(ctx, func(v *vault.Vault) error {
		n, err := look(ctx, v)
		if err != nil {
			return err
		}
		s = hub.VaultState{Vault: v.ID(), Epoch: v.Epoch(), Versions: n, Stale: v.Stale(), OpenedBy: v.OpenedBy(), Recipients: []hub.VaultRecipient{}}
		for _, r := range v.Recipients() {
			x := hub.VaultRecipient{Label: r.Label, Type: r.Type}
			if !r.ID.IsZero() {
				x.ID = r.ID.String()
			}
			s.Recipients = append(s.Recipients, x)
		}
		return nil
	})
	return s, err
}
