package httpapi

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel/hub"
	"palyra/transport/api"
)

// What serves policy, journal, tokens, members and the daemon itself.

// mediaBundle is the media type of a receipt.
const mediaBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"

func getPolicy(x *exchange) error {
	p, err := x.s.cfg.Hub.PolicyInfo(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(p)
}

func explainPolicy(x *exchange) error {
	n := x.body.(*hub.NewCall)
	e, err := x.s.cfg.Hub.PolicyExplain(x.r.Context(), x.caller, *n)
	if err != nil {
		return err
	}
	return x.json(e)
}

func testPolicy(x *exchange) error {
	r, err := x.s.cfg.Hub.PolicyTest(x.r.Context(), x.caller, x.body.(*api.PolicyTestRequest).Candidate)
	if err != nil {
		return err
	}
	return x.json(r)
}

// decision reads the path parameter {decision}.
func (x *exchange) decision() (string, error) {
	id := x.r.PathValue("decision")
	if len(id) < 8 || len(id) > 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return "", usage("bad_decision_id", "parse decision", errors.New("want 8 to 32 lower-case hexadecimal digits"))
	}
	return id, nil
}

func getDecision(x *exchange) error {
	id, err := x.decision()
	if err != nil {
		return err
	}
	r, err := x.s.cfg.Hub.PolicyWhy(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.json(r)
}

func exportDecision(x *exchange) error {
	id, err := x.decision()
	if err != nil {
		return err
	}
	b, err := x.s.cfg.Hub.PolicyExport(x.r.Context(), x.caller, id)
	if err != nil {
		return err
	}
	return x.bytes(x.rt.Status, api.MediaJSON, b)
}

func diffPolicy(x *exchange) error {
	d, err := x.s.cfg.Hub.PolicyDiff(x.r.Context(), x.caller, *x.body.(*hub.PolicyDiffQuery))
	if err != nil {
		return err
	}
	return x.json(d)
}

func reload(x *exchange) error {
	p, err := x.s.cfg.Hub.Reload(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(p)
}

// index reads the path parameter {index}.
func (x *exchange) index() (uint64, error) {
	n, err := parseUint(x.r.PathValue("index"))
	if err != nil {
		return 0, usage("bad_index", "parse index", err)
	}
	return n, nil
}

func getReceipt(x *exchange) error {
	n, err := x.index()
	if err != nil {
		return err
	}
	b, err := x.s.cfg.Hub.Receipt(x.r.Context(), x.caller, n)
	if err != nil {
		return err
	}
	return x.bytes(x.rt.Status, mediaBundle, b)
}

func getJournal(x *exchange) error {
	j, err := x.s.cfg.Hub.JournalStatus(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(j)
}

func listJournalEntries(x *exchange) error {
	limit := x.number("limit")
	if x.query.Has("limit") && (limit < 1 || limit > maxPage) {
		return usage("bad_limit", "parse query", fmt.Errorf("limit is not between 1 and %d", maxPage))
	}
	p, err := x.s.cfg.Hub.JournalEntries(x.r.Context(), x.caller, x.number("from"), int(limit))
	if err != nil {
		return err
	}
	return x.json(p)
}

func proveJournalEntry(x *exchange) error {
	n, err := x.index()
	if err != nil {
		return err
	}
	p, err := x.s.cfg.Hub.JournalProof(x.r.Context(), x.caller, n)
	if err != nil {
		return err
	}
	return x.json(p)
}

func proveJournalConsistency(x *exchange) error {
	if !x.query.Has("old") {
		return usage("bad_parameter", "parse query", errors.New("parameter \"old\" is missing"))
	}
	p, err := x.s.cfg.Hub.JournalConsistency(x.r.Context(), x.caller, x.number("old"))
	if err != nil {
		return err
	}
	return x.json(p)
}

func getCheckpoint(x *exchange) error {
	b, err := x.s.cfg.Hub.JournalCheckpoint(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.bytes(x.rt.Status, api.MediaText, b)
}

func getTile(x *exchange) error {
	name := x.r.PathValue("name")
	if !tileName(name) {
		return fault.New(fault.NotFound, "no_tile", "parse tile name", nil)
	}
	b, err := x.s.cfg.Hub.JournalTile(x.r.Context(), x.caller, "tile/"+name)
	if err != nil {
		return err
	}
	return x.bytes(x.rt.Status, api.MediaBytes, b)
}

// tileName reports whether s is what C2SP tlog-tiles puts after "tile/": a level
// or "entries", the number in groups of three digits with x before all but the
// last, and ".p/" and a width for a partial tile.
func tileName(s string) bool {
	parts := strings.Split(s, "/")
	level, rest := parts[0], parts[1:]
	if n, err := parseUint(level); level != "entries" && (err != nil || n > 63) {
		return false
	}
	if len(rest) >= 2 && strings.HasSuffix(rest[len(rest)-2], ".p") {
		if n, err := parseUint(rest[len(rest)-1]); err != nil || n < 1 || n > 255 {
			return false
		}
		rest = rest[:len(rest)-1]
		rest[len(rest)-1] = strings.TrimSuffix(rest[len(rest)-1], ".p")
	}
	if len(rest) == 0 || len(rest) > 7 {
		return false
	}
	for i, g := range rest {
		if i < len(rest)-1 {
			var ok bool
			if g, ok = strings.CutPrefix(g, "x"); !ok || i == 0 && g == "000" {
				return false
			}
		}
		if len(g) != 3 || strings.Trim(g, "0123456789") != "" {
			return false
		}
	}
	return true
}

// spent is what is recorded of an answer that holds a secret.
type spent struct {
	ID string `json:"id"`
}

// secret answers with a new token, once: its text is not kept, also not for
// whoever sends the same key again.
func (x *exchange) secret(do func() (hub.TokenSecret, error)) error {
	v, had, err := x.once(func() (any, any, error) {
		t, err := do()
		return t, spent{t.ID}, err
	})
	if err != nil {
		return err
	}
	if had != nil {
		return fault.New(fault.Busy, "token_already_made", "create token", fmt.Errorf("the key made %.100s", had)).
			WithHint("its text was in the first answer only; revoke it and make another with a new key")
	}
	t := v.(hub.TokenSecret)
	return x.versioned(x.rt.Status, t, t.Version)
}

func createToken(x *exchange) error {
	return x.secret(func() (hub.TokenSecret, error) {
		return x.s.cfg.Hub.CreateToken(x.r.Context(), x.caller, *x.body.(*hub.NewToken))
	})
}

func rotateToken(x *exchange) error {
	id, err := x.id("token", ident.Token)
	if err != nil {
		return err
	}
	return x.secret(func() (hub.TokenSecret, error) {
		r := x.body.(*api.RotationRequest)
		return x.s.cfg.Hub.RotateToken(x.r.Context(), x.caller, id, hub.Rotation{Version: x.version, TTL: r.TTL, Overlap: r.Overlap})
	})
}

func listTokens(x *exchange) error {
	q, err := x.list(ident.Token)
	if err != nil {
		return err
	}
	p, err := x.s.cfg.Hub.Tokens(x.r.Context(), x.caller, hub.TokenQuery{PageQuery: q, Principal: x.query.Get("principal")})
	if err != nil {
		return err
	}
	return x.json(p)
}

func revokeToken(x *exchange) error {
	id, err := x.id("token", ident.Token)
	if err != nil {
		return err
	}
	t, err := x.s.cfg.Hub.RevokeToken(x.r.Context(), x.caller, id, x.version)
	if err != nil {
		return err
	}
	// Tokens that were made with it end with it: whoever reads as its principal comes back and says who they are.
	x.s.streams.cut(t.Principal)
	return x.versioned(x.rt.Status, t, t.Version)
}

// principal reads the path parameter {principal}.
func (x *exchange) principal() (string, error) {
	p := x.r.PathValue("principal")
	if p == "" || len(p) > 256 || strings.ContainsFunc(p, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return "", usage("bad_principal", "parse principal", errors.New("want 1 to 256 printable bytes"))
	}
	return p, nil
}

func listMembers(x *exchange) error {
	p, err := x.s.cfg.Hub.Members(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(p)
}

func putMember(x *exchange) error {
	who, err := x.principal()
	if err != nil {
		return err
	}
	if !x.create && x.version == 0 {
		return usage("bad_precondition", "change member", errors.New("If-Match: * says neither which version nor that there is none"))
	}
	m, err := x.s.cfg.Hub.PutMember(x.r.Context(), x.caller, hub.Member{Principal: who, Role: x.body.(*api.MemberChange).Role, Version: x.version})
	if err != nil {
		return err
	}
	x.s.streams.cut(who)
	return x.versioned(x.rt.Status, m, m.Version)
}

func removeMember(x *exchange) error {
	who, err := x.principal()
	if err != nil {
		return err
	}
	if err := x.s.cfg.Hub.RemoveMember(x.r.Context(), x.caller, who, x.version); err != nil {
		return err
	}
	x.s.streams.cut(who)
	x.deadline()
	x.w.WriteHeader(x.rt.Status)
	return nil
}

func getStatus(x *exchange) error {
	s, err := x.s.cfg.Hub.Status(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(s)
}

func getDoctor(x *exchange) error {
	d, err := x.s.cfg.Hub.Doctor(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(d)
}

func getConfig(x *exchange) error {
	c, err := x.s.cfg.Hub.Config(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(hub.Page[hub.Setting]{Items: c})
}

func stop(x *exchange) error {
	s, err := x.s.cfg.Hub.Stop(x.r.Context(), x.caller, *x.body.(*hub.StopRequest))
	if err != nil {
		return err
	}
	return x.json(s)
}

func resume(x *exchange) error {
	s, err := x.s.cfg.Hub.Resume(x.r.Context(), x.caller)
	if err != nil {
		return err
	}
	return x.json(s)
}

func getOpenAPI(x *exchange) error {
	b, err := x.s.openapi()
	if err != nil {
		return err
	}
	return x.bytes(x.rt.Status, api.MediaJSON, b)
}

func livez(x *exchange) error { return x.bytes(x.rt.Status, api.MediaText, []byte("ok\n")) }

// readyz says no more than the class of what is wrong: anybody may ask.
func readyz(x *exchange) error {
	if err := x.s.cfg.Ready(x.r.Context()); err != nil {
		if _, ok := x.s.noise.take("not ready"); ok {
			x.s.log.Warn("not ready", "request", idOf(x.r), "error", err)
		}
		return fault.New(fault.Unavailable, "not_ready", "check readiness", errors.New("see the log of palyrad"))
	}
	return x.bytes(x.rt.Status, api.MediaText, []byte("ok\n"))
}
