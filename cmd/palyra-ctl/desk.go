package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/authz/approval"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/programs"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/fault"
)

// desk is where a person answers what waits: a full screen with the queue, and on top of it
// one card, one line to type, or the question for the digits.
//
// An answer is for the version and the capsule of the request that was shown, which the
// hub compares. Each view forgets the keys that were typed before it was drawn, and ends
// when its request doesn't wait any more.
type desk struct {
	app    *app
	ctx    context.Context
	inv    *command.Invocation
	hub    hub.Hub
	screen *terminal.Screen

	looks chan glance   // from the looker
	poke  chan struct{} // of capacity 1: look now

	queue []hub.Approval // oldest first
	more  bool           // there are more
	lost  error          // why palyrad didn't answer the last look
	at    string         // id of the chosen request; "" for none
	row   int            // where it stands or stood in the queue
	top   int            // the first row that is shown
	fresh bool           // what was typed before the next drawing doesn't count
	mine  map[string]bool
	small bool     // what is drawn is that the screen is too small
	said  []string // the newest last
}

// The errors that end a view.
var (
	errOver   = errors.New("the screen is over")
	errGone   = errors.New("the request does not wait any more") // and the screen says why
	errBack   = errors.New("the person went back")
	errChange = errors.New("the request or the screen has changed")
)

// final is an error after which there is nothing to go on with.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// maxSaid bounds the messages that are kept.
const maxSaid = 3

// patience bounds what one question to palyrad may hold up the screen.
const patience = 15 * time.Second

// watchScreen takes answers until the person ends it.
func (a *app) watchScreen(ctx context.Context, inv *command.Invocation, h hub.Hub) (*result, error) {
	if inv.Has("json") {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, errors.New("--answer and --json exclude each other")).WithHint(terminal.Elsewhere)
	}
	w := waiting{hub: h}
	first := w.look(ctx)
	if first.err != nil {
		return nil, first.err
	}
	dev, err := terminal.Open(ctx, a.terminal)
	if err != nil {
		return nil, fault.New(fault.Usage, "bad_command", inv.Command.Name, err).WithHint(terminal.Elsewhere)
	}
	defer dev.Close()
	if rows, columns := dev.Size(); approval.Fits(rows, columns) != nil {
		return nil, approval.Fits(rows, columns)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	screen, err := dev.Screen(ctx, a.getenv("TERM"))
	if err != nil {
		return nil, err
	}
	defer screen.Close()
	d := &desk{app: a, ctx: ctx, inv: inv, hub: h, screen: screen, looks: make(chan glance), poke: make(chan struct{}, 1), mine: map[string]bool{}}
	var looker sync.WaitGroup
	looker.Go(func() {
		defer screen.Rescue()
		d.watch(&w)
	})
	defer looker.Wait()
	defer cancel()
	d.see(first)
	switch err = d.serve(); {
	case errors.Is(err, errOver), ctx.Err() != nil:
		return &result{streamed: true}, nil
	}
	return &result{streamed: true}, err
}

// watch looks at what waits until the screen is over.
func (d *desk) watch(w *waiting) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-d.poke:
		case <-tick.C:
		}
		ctx, end := context.WithTimeout(d.ctx, patience)
		g := w.look(ctx)
		end()
		select {
		case <-d.ctx.Done():
			return
		case d.looks <- g:
		}
	}
}

// say adds a message.
func (d *desk) say(format string, args ...any) {
	d.said = append(d.said, time.Now().UTC().Format("15:04:05 ")+fmt.Sprintf(format, args...))
	d.said = d.said[max(0, len(d.said)-maxSaid):]
}

// see takes what the looker saw. An error is one that trying again doesn't mend.
func (d *desk) see(g glance) error {
	if g.err != nil {
		switch fault.KindOf(g.err) {
		case fault.Denied, fault.Usage, fault.Unsupported:
			return final{g.err}
		}
		if d.lost == nil {
			d.say("palyrad does not answer; trying again: %s", g.err)
		}
		d.lost = g.err
		return nil
	}
	if d.lost != nil {
		d.lost = nil
		d.say("palyrad answers again")
	}
	for i := range g.ended {
		ap := &g.ended[i]
		if !d.mine[ap.ID] {
			d.say("%s", endedText(ap))
		}
		delete(d.mine, ap.ID)
	}
	empty := len(d.queue) == 0
	d.queue, d.more = g.all, g.more
	slices.Reverse(d.queue)
	switch i := d.find(d.at); {
	case i >= 0:
		d.row = i
	case empty && d.at == "" && len(d.queue) > 0:
		d.choose(0)
		d.fresh = true
	case d.at != "": // nothing takes its place unasked
		d.at, d.fresh = "", true
	}
	return nil
}

// endedText says what became of a request.
func endedText(ap *hub.Approval) string {
	text := cut(ap.ID, minShown) + " " + ap.State
	if ap.Approver != "" {
		text += " by " + ap.Approver + " (" + ap.Surface + ")"
	}
	if ap.Detail != "" {
		text += ": " + ap.Detail
	}
	return text
}

func (d *desk) find(id string) int {
	return slices.IndexFunc(d.queue, func(ap hub.Approval) bool { return ap.ID == id })
}

// choose chooses a row of the queue.
func (d *desk) choose(row int) {
	if len(d.queue) == 0 {
		d.at, d.row = "", 0
		return
	}
	d.row = min(max(row, 0), len(d.queue)-1)
	d.at = d.queue[d.row].ID
}

// next waits for something to happen: a key, or what made the screen another one (the zero
// Key).
func (d *desk) next() (terminal.Key, error) {
	select {
	case <-d.ctx.Done():
		return terminal.Key{}, errOver
	case g := <-d.looks:
		return terminal.Key{}, d.see(g)
	case sig := <-d.screen.Signals():
		end, err := d.screen.Heed(sig)
		if end {
			err = errOver
		}
		d.fresh = true
		return terminal.Key{}, err
	case k := <-d.screen.Keys():
		switch {
		case k.Err != nil:
			return k, final{fault.New(fault.Unavailable, "io_error", "watch approvals", k.Err)}
		case d.small && k.Name != "q" && k.Name != "esc":
			return d.next() // and nothing is drawn before the signal, which forgets keys
		}
		return k, nil
	}
}

func (d *desk) tooSmall() error {
	rows, columns := d.screen.Size()
	return approval.Fits(rows, columns)
}

// draw shows rows, or why it can't, and forgets what was typed before if that is due.
func (d *desk) draw(rows []terminal.Row, cursor int) error {
	err := d.tooSmall()
	if d.small && err == nil && !d.fresh {
		return nil // the signal of its new size is on its way
	}
	if d.small = err != nil; d.small {
		_, columns := d.screen.Size()
		rows, cursor = nil, -1
		for _, r := range approval.Rows("The screen is too small.\n"+err.Error()+"\nenlarge it, or q\n", columns) {
			rows = append(rows, terminal.Row{Text: strings.TrimSuffix(r, "\n")})
		}
	}
	fresh := d.fresh
	d.fresh = false
	return d.screen.Draw(rows, cursor, fresh)
}

// serve is the queue.
func (d *desk) serve() error {
	d.fresh = true
	for {
		if err := d.draw(d.queueRows(), -1); err != nil {
			return err
		}
		k, err := d.next()
		if err != nil {
			return err
		}
		switch k.Name {
		case "q", "esc":
			return errOver
		case "up", "k":
			d.move(-1)
		case "down", "j":
			d.move(1)
		case "pgup", "b":
			d.move(-d.room())
		case "pgdn", " ":
			d.move(d.room())
		case "home":
			d.choose(0)
		case "end":
			d.choose(len(d.queue) - 1)
		case "enter":
			err = d.open(d.card)
		case "a":
			err = d.open(d.approve)
		case "d":
			err = d.open(d.deny)
		}
		if err != nil {
			return err
		}
	}
}

// move chooses another row. If the chosen request is gone, it is the next one.
func (d *desk) move(by int) {
	switch {
	case d.at != "":
		d.choose(d.row + by)
	default:
		d.choose(d.row)
	}
}

// open opens a view of the chosen request, as it is now, until the person leaves the view
// or the request stops waiting. Of an error it is nil if the person can go on.
func (d *desk) open(view func(*hub.Approval) error) error {
	if d.at == "" {
		d.say("choose a request first: j or k")
		return nil
	}
	id := d.at
	for {
		d.fresh = true
		ap, err := quickly(d, func(ctx context.Context) (hub.Approval, error) {
			return hub.GetApproval.Do(ctx, d.hub, hub.Caller{}, id)
		})
		if err == nil {
			err = view(&ap)
		}
		switch {
		case errors.Is(err, errChange):
			continue
		case err == nil, errors.Is(err, errGone), errors.Is(err, errBack):
		default:
			if _, over := errors.AsType[final](err); over || fault.ReasonOf(err) == "" || d.ctx.Err() != nil {
				return err
			}
			d.say("%s", err)
		}
		d.fresh = true
		select { // what became of it should be on the screen soon
		case d.poke <- struct{}{}:
		default:
		}
		return nil
	}
}

// quickly asks palyrad something that the screen waits for.
func quickly[T any](d *desk, ask func(context.Context) (T, error)) (T, error) {
	ctx, end := context.WithTimeout(d.ctx, patience)
	defer end()
	return ask(ctx)
}

// still is nil while a request waits as it was shown: errGone, or errChange.
func (d *desk) still(ap *hub.Approval) error {
	i := d.find(ap.ID)
	if i < 0 {
		return errGone
	}
	now := &d.queue[i]
	if now.Version != ap.Version || now.Capsule != ap.Capsule || now.Reduced != ap.Reduced || !slices.Equal(now.Yes, ap.Yes) {
		return errChange
	}
	return nil
}

// listen is next for a view of a request. The person goes back with esc, and in views
// without text with q.
func (d *desk) listen(ap *hub.Approval, text bool) (terminal.Key, error) {
	k, err := d.next()
	if err == nil {
		err = d.still(ap)
	}
	if err == nil && (k.Name == "esc" || !text && k.Name == "q") {
		err = errBack
	}
	return k, err
}

// shown returns what a person is shown of a request.
func (d *desk) shown(ap *hub.Approval) string {
	in, err := quickly(d, func(ctx context.Context) (json.RawMessage, error) { return toolInput(ctx, d.hub, ap) })
	return cardText(ap, in, err)
}

// card shows a request, to be read only.
func (d *desk) card(ap *hub.Approval) error {
	text := d.shown(ap)
	for top := 0; ; {
		height, columns := d.screen.Size()
		rows := approval.Rows(text, columns)
		room := max(1, height-1)
		last := max(0, len(rows)-room)
		top = min(max(top, 0), last)
		var out []terminal.Row
		for _, r := range rows[top:min(top+room, len(rows))] {
			out = append(out, terminal.Row{Text: strings.TrimSuffix(r, "\n")})
		}
		more := "end"
		if top < last {
			more = fmt.Sprintf("%d more", len(rows)-top-room)
		}
		out = append(out, terminal.Row{Text: more + ": space a yes d no q", Mark: true})
		if err := d.draw(out, -1); err != nil {
			return err
		}
		k, err := d.listen(ap, false)
		if err != nil {
			return err
		}
		switch k.Name {
		case "up", "k":
			top--
		case "down", "j", "enter":
			top++
		case "pgup", "b":
			top -= room
		case "pgdn", " ":
			top += room
		case "home":
			top = 0
		case "end":
			top = last
		case "a":
			d.fresh = true
			return d.approve(ap)
		case "d":
			d.fresh = true
			return d.deny(ap)
		}
	}
}

// deny says no, with a comment.
func (d *desk) deny(ap *hub.Approval) error {
	comment, err := d.line(ap, "Say no to this? Enter does, Esc goes back.", "comment for the caller: ")
	if err != nil {
		return err
	}
	return d.answer(ap, hub.Answer{Comment: comment})
}

// answer answers, and says what became of it.
func (d *desk) answer(ap *hub.Approval, ans hub.Answer) error {
	got, err := quickly(d, func(ctx context.Context) (hub.Approval, error) { return answer(ctx, d.hub, ap, ans) })
	if err != nil {
		return err
	}
	d.mine[ap.ID] = got.State != hub.ApprovalPending
	d.say("%s", resolvedText(&got))
	return nil
}

// approve says yes, if the person types the digits below the card.
func (d *desk) approve(ap *hub.Approval) error {
	if err := answerable(ap); err != nil {
		return err
	}
	ans, err := d.reach(ap)
	if err != nil {
		return err
	}
	reaches, err := quickly(d, func(ctx context.Context) (string, error) {
		s, _, err := reachText(ctx, d.hub, ap.ID, &ans, false)
		return s, err
	})
	if err != nil {
		return err
	}
	for shown := d.shown(ap) + reaches; ; {
		err := d.confirm(ap, shown)
		if err == nil {
			return d.answer(ap, ans)
		}
		if !errors.Is(err, errChange) {
			return err
		}
		if err := d.still(ap); err != nil {
			return err
		}
	}
}

// confirm lends the screen to the question for the digits. It takes them back if the
// request changes, and if the screen does: then the card is shown again, from its beginning
// and with other digits.
func (d *desk) confirm(ap *hub.Approval, shown string) error {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		defer d.screen.Rescue()
		asked <- d.screen.Ask(func(p *approval.Terminal) error { return confirm(ctx, p, ap, shown) })
	}()
	d.fresh = true
	for {
		select {
		case err := <-asked:
			return err
		case g := <-d.looks:
			err := d.see(g)
			if err == nil {
				err = d.still(ap)
			}
			if err != nil {
				cancel()
				<-asked // a yes in this moment is one to what was
				return err
			}
		case sig := <-d.screen.Signals():
			cancel()
			err := <-asked
			end, herr := d.screen.Heed(sig)
			switch {
			case end:
				return errOver
			case herr != nil:
				return herr
			case err == nil: // the yes was first
				return nil
			}
			return errChange
		}
	}
}

// reach asks how far a yes reaches, in the words of the flags of approvals approve.
func (d *desk) reach(ap *hub.Approval) (hub.Answer, error) {
	var args []string
	for args == nil {
		rows := append(d.brief(ap), terminal.Row{Text: "How far? Esc goes back.", Mark: true}, terminal.Row{Text: "  o, Enter: this call, once"},
			terminal.Row{Text: "  s: also in this session"}, terminal.Row{Text: "  t: also for a time"})
		if err := d.draw(rows, -1); err != nil {
			return hub.Answer{}, err
		}
		k, err := d.listen(ap, false)
		if err != nil {
			return hub.Answer{}, err
		}
		switch k.Name {
		case "o", "enter":
			args = []string{"--scope", "once"}
		case "s":
			args = []string{"--scope", "session"}
		case "t":
			args = []string{"--for"}
		}
	}
	d.fresh = true
	if args[0] == "--for" {
		s, err := d.line(ap, "For how long?", "1s to 24h, such as 10m: ")
		if err != nil {
			return hub.Answer{}, err
		}
		args = append(args, s)
	}
	if args[1] != "once" {
		s, err := d.line(ap, "For how many calls at most, this one included?", "Enter: no bound: ")
		if err != nil {
			return hub.Answer{}, err
		}
		if s != "" {
			args = append(args, "--uses", s)
		}
		s, err = d.line(ap, "For which calls? same, within=2,3 or content", "Enter: this very one: ")
		if err != nil {
			return hub.Answer{}, err
		}
		for _, p := range strings.Fields(s) {
			args = append(args, "--pattern", p)
		}
	}
	inv, err := programs.Table(programs.Client).Parse(append(append([]string{"approvals", "approve"}, args...), ap.ID))
	if err != nil {
		return hub.Answer{}, err
	}
	return reach(inv)
}

// maxTyped bounds a line that is typed, in bytes: a comment.
const maxTyped = 500

// line reads a line about a request. The person sees what it is about, and goes back with
// esc.
func (d *desk) line(ap *hub.Approval, about, prompt string) (string, error) {
	d.fresh = true
	for typed := []rune(nil); ; {
		_, columns := d.screen.Size()
		text := front.Escape(string(typed))
		field := prompt + text[max(0, len(text)-max(0, columns-2-len(prompt))):] // its end
		rows := append(d.brief(ap), terminal.Row{Text: about, Mark: true}, terminal.Row{Text: field})
		if err := d.draw(rows, len(rows)-1); err != nil {
			return "", err
		}
		k, err := d.listen(ap, true)
		if err != nil {
			return "", err
		}
		switch r := []rune(k.Name); {
		case k.Name == "enter":
			d.fresh = true
			return strings.TrimSpace(string(typed)), nil
		case k.Name == "erase":
			typed = typed[:max(0, len(typed)-1)]
		case k.Name == "clear":
			typed = nil
		case len(r) == 1 && len(string(typed))+len(k.Name) <= maxTyped:
			typed = append(typed, r...)
		}
	}
}

// brief are the rows that say which request a question is about.
func (d *desk) brief(ap *hub.Approval) (rows []terminal.Row) {
	c := approvalCells(ap)
	for _, s := range []string{fmt.Sprint(c[0]), fmt.Sprint(c[3], " ", c[4]), fmt.Sprint(c[5]), ""} {
		rows = append(rows, terminal.Row{Text: cell(s)})
	}
	return rows
}

// room returns how many rows the queue has.
func (d *desk) room() int {
	height, _ := d.screen.Size()
	return max(1, height-3-d.messages())
}

// messages returns how many rows the messages have.
func (d *desk) messages() int {
	if height, _ := d.screen.Size(); height < 14 {
		return 1
	}
	return maxSaid
}

// queueRows is the queue: how many wait, a table of them, the last messages and the keys.
func (d *desk) queueRows() []terminal.Row {
	height, columns := d.screen.Size()
	count := fmt.Sprint(len(d.queue))
	if d.more {
		count += "+"
	}
	head := "Palyra: " + count + " wait"
	if len(d.queue) == 1 {
		head = "Palyra: 1 waits"
	}
	if d.lost != nil {
		head += ", NOT CONNECTED"
	}
	rows := []terminal.Row{{Text: head}}

	t := front.NewTable("APPROVAL", "TOOL", "ARGUMENTS", "REQUESTER", "YES OF", "UNTIL").Keep(0)
	id := short(len(d.queue), func(i int) string { return d.queue[i].ID })
	for i := range d.queue {
		ap := &d.queue[i]
		c := approvalCells(ap)
		t.Row(id(ap.ID), c[4], c[5], c[3], strings.Join(ap.Yes, ", "), stamp(ap.Expires))
	}
	lines := strings.Split(strings.TrimSuffix(t.Text(columns-3), "\n"), "\n")
	room := d.room()
	d.top = min(max(d.top, d.row-room+1, 0), d.row)
	rows = append(rows, terminal.Row{Text: "  " + lines[0]})
	for i := d.top; i < min(d.top+room, len(d.queue)); i++ {
		mark := "  "
		if d.queue[i].ID == d.at {
			mark = "> "
		}
		rows = append(rows, terminal.Row{Text: mark + lines[i+1], Mark: d.queue[i].ID == d.at})
	}
	messages := d.said[max(0, len(d.said)-d.messages()):]
	for len(rows) < height-1-len(messages) {
		rows = append(rows, terminal.Row{})
	}
	for _, m := range messages {
		rows = append(rows, terminal.Row{Text: cell(m)})
	}
	keys := "Enter card a yes d no q end"
	if columns >= 60 {
		keys = "j k choose   Enter card   a yes   d no   q end"
	}
	return append(rows, terminal.Row{Text: keys, Mark: true})
}
