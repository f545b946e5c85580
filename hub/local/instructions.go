package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"palyra/hub"
	"palyra/hub/agent"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/signal"
)

// A project's instructions count for the agents of a user who has accepted the digest of their
// file. Acceptances are a setting of the store, and each is in the journal before it counts.

// The acts in the journal about instructions.
const (
	actInstructionsAccepted = "instructions.accept"
	actInstructionsRevoked  = "instructions.revoke"
)

func (h *Hub) instructionOperations() []hub.Entry {
	return []hub.Entry{
		hub.ListInstructions.By(h.listInstructions),
		hub.InspectInstructions.By(h.inspectInstructions),
		hub.AcceptInstructions.By(h.acceptInstructions),
		hub.RevokeInstructions.By(h.revokeInstructions),
	}
}

// instructedSetting names the setting of a user, a JSON object of hub.Instructed by workspace.
func instructedSetting(user string) string { return "hub.instructions." + user }

// readInstructed returns what a user has accepted, by workspace.
func readInstructed(tx *store.Tx, user string) (map[string]hub.Instructed, *store.Setting, error) {
	all, key := map[string]hub.Instructed{}, instructedSetting(user)
	row, err := tx.Setting(key)
	if fault.KindOf(err) == fault.NotFound {
		return all, &store.Setting{Key: key}, nil
	}
	if err == nil {
		if err = json.Unmarshal(row.Value, &all); err != nil {
			err = fault.New(fault.Integrity, "store_corrupt", "read setting "+key, err)
		}
	}
	return all, row, err
}

// instructed is agent.Config.Accepted.
func (h *Hub) instructed(ctx context.Context, user, workspace string) (*hub.Instructed, error) {
	return store.View(ctx, h.st, func(tx *store.Tx) (*hub.Instructed, error) {
		all, _, err := readInstructed(tx, user)
		if yes, ok := all[workspace]; ok && err == nil {
			return &yes, nil
		}
		return nil, err
	})
}

// instruct changes what a user has accepted.
func (h *Hub) instruct(ctx context.Context, user string, change func(all map[string]hub.Instructed)) error {
	return h.st.Update(ctx, func(tx *store.Tx) error {
		all, row, err := readInstructed(tx, user)
		if err != nil {
			return err
		}
		change(all)
		maps.DeleteFunc(all, func(name string, _ hub.Instructed) bool { return h.cfg.Workspaces[name] == "" }) // so there are no more than workspaces
		if row.Value, err = canon.Marshal(all); err != nil {
			return err
		}
		return tx.PutSetting(row)
	})
}

func (h *Hub) listInstructions(ctx context.Context, c hub.Caller, _ hub.None) (p hub.Page[hub.Instructions], err error) {
	p.Items = []hub.Instructions{}
	all, err := store.View(ctx, h.st, func(tx *store.Tx) (map[string]hub.Instructed, error) {
		all, _, err := readInstructed(tx, c.User)
		return all, err
	})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		yes := all[name]
		p.Items = append(p.Items, hub.Instructions{Workspace: name, Accepted: &yes})
	}
	return p, err
}

func (h *Hub) inspectInstructions(ctx context.Context, c hub.Caller, workspace string) (hub.Instructions, error) {
	op := fmt.Sprintf("read instructions of workspace %.80q", workspace)
	out := hub.Instructions{Workspace: workspace, State: hub.InstructionsNone}
	if h.cfg.Workspaces[workspace] == "" {
		return out, fault.New(fault.NotFound, "not_found", op, errors.New("no workspace has this name"))
	}
	yes, err := h.instructed(ctx, c.User, workspace)
	if err != nil {
		return out, err
	}
	out.Accepted = yes
	if err := h.made(ctx, c, agent.ListRoot(workspace), func(list []byte) (err error) {
		out.File, err = agent.InstructionsIn(list)
		return err
	}); err != nil || out.File == "" {
		return out, err
	}
	if err := h.made(ctx, c, agent.ReadInstructions(workspace, out.File), func(read []byte) (err error) {
		out.Text, err = agent.InstructionsOf(read)
		return err
	}); err != nil {
		return out, err
	}
	out.Digest = canon.Sum([]byte(out.Text))
	for _, f := range signal.Orders(out.Text) {
		out.Signals = append(out.Signals, hub.Signal{Code: f.Code, Severity: f.Severity, From: f.From, To: f.To})
	}
	switch {
	case yes == nil:
		out.State = hub.InstructionsNew
	case yes.Digest == out.Digest:
		out.State = hub.InstructionsAccepted
	default:
		out.State = hub.InstructionsChanged
	}
	return out, nil
}

// maxMade bounds what a call wrote that made gives, in bytes.
const maxMade = 8 << 20

// made makes a call in the caller's name, in a run of its own, and has use read what it wrote.
func (h *Hub) made(ctx context.Context, c hub.Caller, s hub.Step, use func(wrote []byte) error) error {
	id, err := h.once(ctx, c, "", s, nil)
	if err != nil {
		return err
	}
	r, err := h.runs.Read(ctx, id)
	if err != nil {
		return h.named(c, err)
	}
	st := &r.Steps[0]
	if st.Outcome != "executed" || st.Exit != 0 {
		return fault.New(fault.Denied, st.Reason, "call "+s.Tool, fmt.Errorf("%s %s", st.Outcome, st.Error)).WithHint("palyra runs show " + id)
	}
	if st.Stdout.Artifact.IsZero() {
		return use([]byte(st.Stdout.Text))
	}
	release, err := h.reads(ctx, c, maxMade)
	if err != nil {
		return err
	}
	defer release()
	f, _, err := h.st.OpenArtifact(ctx, st.Stdout.Artifact)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMade))
	if err != nil {
		return err
	}
	return use(b)
}

func (h *Hub) acceptInstructions(ctx context.Context, c hub.Caller, a hub.InstructionsAcceptance) (hub.Instructions, error) {
	op := fmt.Sprintf("accept instructions of workspace %.80q", a.Workspace)
	if c.Token != "" && c.Surface != hub.SurfaceConsole {
		return hub.Instructions{}, fault.New(fault.Denied, "permission_denied", op, errors.New("a token accepts no instructions: its agent would choose its own")).
			WithHint("a person does, at the machine of palyrad: palyra agent instructions accept " + a.Workspace)
	}
	want, err := canon.ParseDigest(a.Digest)
	if err != nil {
		return hub.Instructions{}, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if err := h.room(c); err != nil {
		return hub.Instructions{}, err
	}
	v, err := h.inspectInstructions(ctx, c, a.Workspace)
	hides := slices.ContainsFunc(v.Signals, func(s hub.Signal) bool {
		f := signal.Finding{Code: s.Code}
		return f.Category() == signal.Hidden
	})
	switch {
	case err != nil:
		return hub.Instructions{}, err
	case v.Digest != want || v.State == hub.InstructionsNone:
		return hub.Instructions{}, fault.New(fault.Busy, "version_conflict", op, errors.New("the file has another digest now")).
			WithHint("look at it first: palyra agent instructions show " + a.Workspace)
	case hides && !a.Anyway:
		return hub.Instructions{}, fault.New(fault.Usage, "invalid_input", op, errors.New("the file has text that people don't see")).
			WithHint("palyra agent instructions show names it; --anyway accepts it all the same")
	}
	yes := hub.Instructed{File: v.File, Digest: v.Digest, By: c.User, Time: time.Now().UTC(), Anyway: hides}
	// The act first: no run rests on instructions that the journal doesn't know as accepted.
	if _, err := h.record(context.WithoutCancel(ctx), c, actInstructionsAccepted, a.Workspace, map[string]string{"file": v.File, "digest": v.Digest.String()}); err != nil {
		return hub.Instructions{}, err
	}
	if err := h.instruct(ctx, c.User, func(all map[string]hub.Instructed) { all[a.Workspace] = yes }); err != nil {
		return hub.Instructions{}, err
	}
	v.State, v.Accepted = hub.InstructionsAccepted, &yes
	return v, nil
}

func (h *Hub) revokeInstructions(ctx context.Context, c hub.Caller, workspace string) (hub.None, error) {
	yes, err := h.instructed(ctx, c.User, workspace)
	if err != nil {
		return hub.None{}, err
	}
	if yes == nil {
		return hub.None{}, fault.New(fault.NotFound, "not_found", fmt.Sprintf("revoke instructions of workspace %.80q", workspace), errors.New("none were accepted"))
	}
	if err := h.instruct(ctx, c.User, func(all map[string]hub.Instructed) { delete(all, workspace) }); err != nil {
		return hub.None{}, err
	}
	_, err = h.record(context.WithoutCancel(ctx), c, actInstructionsRevoked, workspace, map[string]string{"digest": yes.Digest.String()})
	return hub.None{}, err
}
