package local

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/probe"
)

// adminOperations returns the operations of tools, tokens, members and the daemon.
func (h *Hub) adminOperations() []hub.Entry {
	return []hub.Entry{
		hub.ListTools.By(h.listTools),
		hub.ListModels.By(h.listModels),
		hub.GetUsage.By(h.getUsage),
		hub.FindFolders.By(h.findFolders),
		hub.CreateToken.By(h.createToken),
		hub.OpenConsole.By(h.openConsole),
		hub.ListPasskeys.By(h.listPasskeys),
		hub.RevokePasskey.By(h.revokePasskey),
		hub.ListTokens.By(h.listTokens),
		hub.RevokeToken.By(h.revokeToken),
		hub.RotateToken.By(h.rotateToken),
		hub.ListMembers.By(h.listMembers),
		hub.PutMember.By(h.putMember),
		hub.RemoveMember.By(h.removeMember),
		hub.GetConfig.By(h.getConfig),
		hub.GetStatus.By(h.getStatus),
		hub.GetDoctor.By(h.getDoctor),
		hub.Backup.By(h.backup),
	}
}

// createToken: a token is for the caller and no other principal.
func (h *Hub) createToken(ctx context.Context, c hub.Caller, n hub.NewToken) (hub.TokenSecret, error) {
	if n.Name == hub.ConsoleToken {
		return hub.TokenSecret{}, fault.New(fault.Usage, "invalid_input", "create token", fmt.Errorf("%q is the name of browsers' tokens", n.Name)).
			WithHint("choose another name; palyra console open lets a browser in")
	}
	return h.mint(ctx, c, n, "")
}

// mint makes a token for a caller who signed in with a passkey, "" for none.
func (h *Hub) mint(ctx context.Context, c hub.Caller, n hub.NewToken, passkey string) (hub.TokenSecret, error) {
	if n.Principal != "" && n.Principal != c.User {
		return hub.TokenSecret{}, h.byRegistry(c, "create token", fault.New(fault.Denied, "permission_denied", "mint token", errors.New("the token would be another's")).
			WithHint("a token is for whoever mints it: let that principal do it"))
	}
	scopes, err := access.ParseSet(n.Scopes)
	if err == nil {
		err = h.room(c)
	}
	if err != nil {
		return hub.TokenSecret{}, err
	}
	secret, t, err := h.access.Mint(ctx, holder(c), access.Request{Name: n.Name, Scopes: scopes, Lifetime: n.TTL, Passkey: passkey})
	if err != nil {
		return hub.TokenSecret{}, h.byRegistry(c, "create token", err)
	}
	return hub.TokenSecret{Token: h.tokenOf(t), Secret: secret.Reveal()}, nil
}

// tokenOf returns a token as clients see it. Its version counts its changes: a token is
// rotated once and revoked once.
func (h *Hub) tokenOf(t *access.Token) hub.Token {
	v := hub.Token{ID: t.ID, Name: t.Name, Principal: t.Principal, Scopes: []string{}, State: "active", Successor: t.Successor, Version: 1,
		Created: t.Created, Expires: t.Expires}
	for _, p := range t.Scopes.List() {
		v.Scopes = append(v.Scopes, string(p))
	}
	if t.Successor != "" {
		v.State = "rotated"
		v.Version++
	}
	if h.access.Expired(t) {
		v.State = "expired"
	}
	if !t.Revoked.IsZero() {
		v.State, v.Revoked = "revoked", &t.Revoked
		v.Version++
	}
	if !t.LastUsed.IsZero() {
		v.LastUse = &t.LastUsed
	}
	return v
}

func (h *Hub) listTokens(_ context.Context, c hub.Caller, q hub.TokenQuery) (none hub.Page[hub.Token], err error) {
	p, err := page(q.PageQuery)
	if err != nil {
		return none, err
	}
	v := hub.Page[hub.Token]{Items: []hub.Token{}}
	for {
		tokens, err := h.access.Tokens(holder(c), p.After, p.Limit)
		if err != nil {
			return none, err
		}
		for i := range tokens {
			p.After = tokens[i].ID
			if (q.Principal == "" || tokens[i].Principal == q.Principal) && h.sees(c, tokens[i].Principal) {
				v.Items = append(v.Items, h.tokenOf(&tokens[i]))
			}
			if len(v.Items) == p.Limit {
				v.Next = p.After
				return v, nil
			}
		}
		if len(tokens) < p.Limit {
			return v, nil
		}
	}
}

// token returns one token that the caller sees, at a version.
func (h *Hub) token(c hub.Caller, id string, version int64) (hub.Token, error) {
	for after := ""; ; {
		tokens, err := h.access.Tokens(holder(c), after, store.MaxPage)
		if err != nil {
			return hub.Token{}, err
		}
		for i := range tokens {
			if after = tokens[i].ID; after != id || !h.sees(c, tokens[i].Principal) {
				continue
			}
			t := h.tokenOf(&tokens[i])
			if version != 0 && version != t.Version {
				return t, fault.New(fault.Busy, "version_conflict", "change token", nil).WithHint("read it again")
			}
			return t, nil
		}
		if len(tokens) < store.MaxPage {
			return hub.Token{}, noSuch("token", id)
		}
	}
}

func (h *Hub) revokeToken(ctx context.Context, c hub.Caller, in hub.TokenChange) (hub.Token, error) {
	t, err := h.token(c, in.ID, in.Version)
	if err != nil {
		return hub.Token{}, err
	}
	_, err = h.access.Revoke(ctx, holder(c), in.ID)
	h.reviewDevices()
	h.runs.Review(c.User) // what takes something away counts before the journal has it
	if err != nil {
		return hub.Token{}, h.byRegistry(c, "revoke token", err)
	}
	if now, err := h.token(c, in.ID, 0); err == nil {
		return now, nil
	}
	// A token that revoked itself sees nothing any more.
	at := time.Now().UTC()
	t.State, t.Revoked, t.Version = "revoked", &at, t.Version+1
	return t, nil
}

func (h *Hub) rotateToken(ctx context.Context, c hub.Caller, r hub.Rotation) (hub.TokenSecret, error) {
	if _, err := h.token(c, r.ID, r.Version); err != nil {
		return hub.TokenSecret{}, err
	}
	secret, t, err := h.access.Rotate(ctx, holder(c), r.ID, r.TTL, r.Overlap)
	if err != nil {
		return hub.TokenSecret{}, h.byRegistry(c, "rotate token", err)
	}
	return hub.TokenSecret{Token: h.tokenOf(t), Secret: secret.Reveal()}, nil
}

func (h *Hub) listMembers(_ context.Context, c hub.Caller, _ hub.None) (hub.Page[hub.Member], error) {
	v := hub.Page[hub.Member]{Items: []hub.Member{}}
	for _, m := range h.access.Members(holder(c)) {
		v.Items = append(v.Items, memberOf(&m))
	}
	return v, nil
}

func memberOf(m *access.Member) hub.Member {
	return hub.Member{Principal: m.Principal, Role: string(m.Role), Version: int64(m.Version), Created: m.Changed, By: m.AddedBy}
}

func (h *Hub) putMember(ctx context.Context, c hub.Caller, m hub.MemberPut) (hub.Member, error) {
	if err := h.room(c); err != nil {
		return hub.Member{}, err
	}
	got, err := h.access.SetMember(ctx, holder(c), m.Principal, access.Role(m.Role), uint64(max(m.Version, 0)))
	h.reviewDevices()
	h.runs.Review(c.User)
	if err != nil {
		return hub.Member{}, h.byRegistry(c, "change member", err)
	}
	return memberOf(got), nil
}

func (h *Hub) removeMember(ctx context.Context, c hub.Caller, in hub.MemberRemoval) (hub.None, error) {
	if in.Version == 0 {
		for _, m := range h.access.Members(holder(c)) {
			if m.Principal == in.Principal {
				in.Version = int64(m.Version)
			}
		}
	}
	err := h.access.RemoveMember(ctx, holder(c), in.Principal, uint64(max(in.Version, 0)))
	h.reviewDevices()
	h.runs.Review(c.User)
	return hub.None{}, h.byRegistry(c, "remove member", err)
}

func (h *Hub) getConfig(_ context.Context, c hub.Caller, _ hub.None) (p hub.Page[hub.Setting], _ error) {
	if h.cfg.Settings != nil {
		p.Items = h.cfg.Settings()
	}
	return p, nil
}

// getStatus: a caller without the permission learns only that the daemon is there, its
// version and mode, and as whom it knows the caller.
func (h *Hub) getStatus(ctx context.Context, c hub.Caller, _ hub.None) (hub.Status, error) {
	s := hub.Status{Version: h.cfg.Version, Mode: h.cfg.Mode(), DenyNew: h.brake.denies(), Caller: c}
	if s.DenyNew && s.Mode == "normal" {
		s.Mode = "stopped"
	}
	if c.User == "" {
		return hub.Status{}, unauthenticated()
	}
	if h.need(c, access.ConfigRead) != nil {
		s.Hidden = true
		return s, nil
	}
	s.StatusDetail = &hub.StatusDetail{Warnings: []string{}, Confinement: hub.Confinement{Controls: []hub.ConfinedControl{}}}
	s.Profile, s.PID, s.User, s.Retention = h.cfg.Profile, os.Getpid(), self(), h.retained()
	s.Started, s.Uptime, s.Pool = h.started, time.Since(h.started), h.cfg.Pool
	s.PolicySet, s.FeaturesOff = h.k.PolicySet().Digest(), h.cfg.Features.Off()
	if h.cfg.Confinement != nil {
		s.Confinement = h.cfg.Confinement()
	}
	if h.cfg.Warnings != nil {
		s.Warnings = append(s.Warnings, h.cfg.Warnings()...)
	}
	if !h.brake.hasFile() {
		s.Warnings = append(s.Warnings, "stop: on a full disk it would not outlive a restart: its file could not be made")
	}
	if err := h.Notified(); err != nil {
		s.Warnings = append(s.Warnings, "notify.url: the last notification failed: "+fault.ReasonOf(err))
	}
	if h.cfg.AllowSelf {
		s.Warnings = append(s.Warnings, "approvals.allow_self: whoever asks for a call may approve it")
	}
	if d := h.cfg.Clock.Behind(); d >= time.Minute {
		s.Warnings = append(s.Warnings, fmt.Sprintf("clock: the host's is %v behind the newest time known; tokens end by the later", d.Truncate(time.Second)))
	}
	s.Counts.RunsActive, s.Counts.RunsQueued = h.runs.Counts()
	s.Counts.ApprovalsPending, s.Counts.TapeReaders = h.runs.Approvals().Waiting(), h.runs.Readers()
	open, err := store.View(ctx, h.st, func(tx *store.Tx) (int, error) { return tx.OpenSessions("") })
	if err != nil { // a full or broken disk is what status is asked about
		s.Warnings = append(s.Warnings, "store: "+fault.ReasonOf(err))
	}
	s.Counts.SessionsOpen = open
	j, err := h.k.JournalStatus(ctx)
	if err != nil {
		s.Warnings = append(s.Warnings, "journal: "+fault.ReasonOf(err))
	}
	s.Journal = hub.JournalCounts{Size: j.Size, Open: len(j.Open)}
	return s, nil
}

// probeAge is how old an examination of the host may be to be used again. A new one takes a
// quarter of a second and several processes.
const probeAge = 5 * time.Second

// probe examines the host, one request at a time.
func (h *Hub) probe(ctx context.Context, c hub.Caller) (*probe.Report, error) {
	place, err := h.pools.probe.Wait(ctx, h.payer(c), 1)
	if err != nil {
		return nil, err
	}
	defer place.Release()
	h.mu.Lock()
	r, at := h.probed, h.probedAt
	h.mu.Unlock()
	if r != nil && time.Since(at) < probeAge {
		return r, nil
	}
	if r, err = h.cfg.Probe(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.probed, h.probedAt = r, time.Now()
	h.mu.Unlock()
	return r, nil
}

func (h *Hub) getDoctor(ctx context.Context, c hub.Caller, _ hub.None) (hub.Doctor, error) {
	if h.cfg.Probe == nil {
		return hub.Doctor{}, fault.New(fault.Unsupported, "platform_unsupported", "examine host", errors.New("this daemon probes nothing"))
	}
	r, err := h.probe(ctx, c)
	if err != nil {
		return hub.Doctor{}, err
	}
	v := hub.Doctor{Missing: []string{}, Healthy: true, Kernel: r.Kernel, Machine: r.Machine, Findings: []hub.Finding{}}
	for _, f := range r.Findings {
		x := hub.Finding{Name: f.Name, Answer: f.Answer.String(), Detail: f.Detail, Since: f.Since, How: f.How, Needed: []string{}, Cost: f.Cost, Fix: f.Hint}
		for _, t := range f.Needed {
			x.Needed = append(x.Needed, t.String())
		}
		if f.Answer != probe.Yes && len(f.Needed) > 0 {
			v.Healthy = false
		}
		v.Findings = append(v.Findings, x)
	}
	if h.cfg.Examine != nil {
		v.Findings = append(v.Findings, h.cfg.Examine()...)
	}
	for _, f := range v.Findings {
		if f.Answer == "no" && f.Cost != "" || f.Answer != "yes" && len(f.Needed) > 0 {
			v.Missing = append(v.Missing, f.Name)
		}
	}
	return v, nil
}

// backup holds the working state, the journal and the public keys, and no private key: root
// on the machine keeps those.
func (h *Hub) backup(ctx context.Context, c hub.Caller, r hub.BackupTo) (hub.BackupInfo, error) {
	if err := h.room(c); err != nil {
		return hub.BackupInfo{}, err
	}
	out := &counted{w: r.W}
	sum := sha256.New()
	m, err := h.st.Backup(ctx, io.MultiWriter(out, sum), store.BackupOptions{StateDir: h.k.StateDir(), Recipients: r.Recipients})
	if err != nil {
		return hub.BackupInfo{}, err
	}
	v := hub.BackupInfo{Files: len(m.Files), Bytes: out.n, Digest: canon.Digest(sum.Sum(nil)).String()}
	_, err = h.record(context.WithoutCancel(ctx), c, "backup.create", v.Digest, map[string]string{
		"bytes": strconv.FormatInt(v.Bytes, 10), "files": strconv.Itoa(v.Files)})
	return v, err
}

// counted counts the bytes written.
type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
