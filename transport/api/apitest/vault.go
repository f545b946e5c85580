package apitest

import (
	"context"
	"time"

	"palyra/hub"
	"palyra/internal/ident"
)

// SecretRef is the one secret of a Hub, and SecretValue its value.
const (
	SecretRef   = "vault://global/token"
	SecretValue = "correct horse battery"
)

// vaultEntries returns the operations of the vault.
func (h *Hub) vaultEntries() []hub.Entry {
	return []hub.Entry{
		hub.SetSecret.By(func(_ context.Context, c hub.Caller, n hub.SecretValue) (hub.VaultResult, error) {
			return vaultResult(c, n.Ref), nil
		}),
		hub.RollBackSecret.By(func(_ context.Context, c hub.Caller, n hub.SecretRollback) (hub.VaultResult, error) {
			return vaultResult(c, n.Ref), nil
		}),
		hub.RevealSecret.By(func(_ context.Context, c hub.Caller, n hub.SecretVersion) (hub.VaultResult, error) {
			r := vaultResult(c, n.Ref)
			r.Value = []byte(SecretValue)
			return r, nil
		}),
		hub.ListSecrets.By(func(_ context.Context, c hub.Caller, _ hub.SecretQuery) (hub.VaultResult, error) {
			return vaultResult(c, SecretRef), nil
		}),
		hub.RemoveSecret.By(func(_ context.Context, c hub.Caller, n hub.SecretName) (hub.VaultResult, error) {
			return vaultResult(c, n.Ref), nil
		}),
		hub.RotateVault.By(func(_ context.Context, c hub.Caller, _ hub.VaultRotation) (hub.VaultResult, error) {
			return vaultResult(c), nil
		}),
		hub.AddVaultRecipient.By(func(_ context.Context, c hub.Caller, _ hub.NewVaultRecipient) (hub.VaultResult, error) {
			return vaultResult(c), nil
		}),
		hub.ImportSecrets.By(func(_ context.Context, c hub.Caller, n hub.SecretImport) (hub.VaultResult, error) {
			var refs []string
			for _, s := range n.Secrets {
				refs = append(refs, s.Ref)
			}
			return vaultResult(c, refs...), nil
		}),
		hub.ExportSecrets.By(func(_ context.Context, c hub.Caller, n hub.SecretExport) (hub.VaultResult, error) {
			r := vaultResult(c, n.Refs...)
			r.File = []byte("age-encryption.org/v1\n")
			return r, nil
		}),
		hub.GetVault.By(vaultState), hub.VerifyVault.By(vaultState),
	}
}

// vaultResult is that of a call in which policy says no to callers other than owners.
func vaultResult(c hub.Caller, refs ...string) hub.VaultResult {
	at := time.Unix(1e9, 0).UTC()
	step := hub.StepResult{Tool: "vault.set", State: hub.StepDone, Outcome: "executed", Started: &at, Ended: &at}
	if c.Role != "owner" {
		step.Outcome, step.Reason, step.Error = "denied", "forbidden", "why"
		step.Denial = &hub.Denial{Layer: hub.LayerPolicy, DecisionID: "00112233", Reason: "forbidden", Policies: []string{"p"}}
	}
	r := hub.VaultResult{Run: hub.Run{ID: ident.New(ident.Run), Session: ident.New(ident.Session), Principal: c.User, State: hub.RunDone, Created: at, Steps: []hub.StepResult{step}}}
	for _, ref := range refs {
		r.Secrets = append(r.Secrets, hub.SecretInfo{Ref: ref, Version: 1, Size: len(SecretValue), Created: at})
	}
	return r
}

func vaultState(context.Context, hub.Caller, hub.None) (hub.VaultState, error) {
	return hub.VaultState{Vault: "4XK", Epoch: 7, Versions: 1, Recipients: []hub.VaultRecipient{{Label: "owner", Type: "hpke-mlkem768-x25519", ID: "sha256:00"}}}, nil
}
