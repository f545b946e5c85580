package openai

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"palyra/agentloop/turn"
	"palyra/hub"
)

// The bounds of a page of items.
const (
	pageItems = 20 // where the request says none
	mostItems = 100
)

// inputItems answers GET /v1/responses/{id}/input_items: what the model was asked, with what came
// before in its conversation; of the agent what the request told it.
func (x *exchange) inputItems(id string) error {
	run, err := x.response(x.r.Context(), id, "")
	if err != nil {
		return err
	}
	all, err := itemsOf(run)
	if err != nil {
		return err
	}
	page, more, err := pageOf(all, x.r.URL.Query())
	if err != nil {
		return err
	}
	o := object{"object": "list", "data": page, "first_id": nil, "last_id": nil, "has_more": more}
	if n := len(page); n > 0 {
		o["first_id"], o["last_id"] = page[0]["id"], page[n-1]["id"]
	}
	return answer(x.w, http.StatusOK, o)
}

// pageOf chooses from items that are in their order: the newest first, unless the query says asc.
func pageOf(all []object, q url.Values) (page []object, more bool, err error) {
	if q.Get("order") != "asc" {
		slices.Reverse(all)
	}
	if after := q.Get("after"); after != "" {
		i := slices.IndexFunc(all, func(o object) bool { return o["id"] == after })
		if i < 0 {
			return nil, false, bad("after", "invalid_value", "there is no such item")
		}
		all = all[i+1:]
	}
	n := pageItems
	if q.Has("limit") {
		if n, err = strconv.Atoi(q.Get("limit")); err != nil || n < 1 || n > mostItems {
			return nil, false, bad("limit", "invalid_value", "want 1 to "+strconv.Itoa(mostItems))
		}
	}
	if page = []object{}; len(all) > n {
		return append(page, all[:n]...), true, nil
	}
	return append(page, all...), false, nil
}

// itemsOf is the input of a response's run, in its order.
func itemsOf(run *hub.Run) (all []object, err error) {
	add := func(prefix string, o object) {
		if id, _ := o["id"].(string); id == "" { // reasoning items keep theirs
			o["id"] = name(prefix, run.ID) + "_i" + strconv.Itoa(len(all))
		}
		o["status"] = "completed"
		all = append(all, o)
	}
	message := func(role string, parts ...object) {
		add("msg_", object{"type": "message", "role": role, "content": parts})
	}
	text := func(s string) object { return object{"type": "input_text", "text": s} }
	result := func(id, s string) {
		add("fco_", object{"type": "function_call_output", "call_id": id, "output": s})
	}
	if a := run.Agent; a != nil {
		if _, s := split(a.Instructions, run.Metadata); s != "" {
			message(roleDeveloper, text(s))
		}
		for _, r := range a.Results {
			result(r.ID, r.Text)
		}
		if a.Prompt != "" {
			message(turn.User, text(a.Prompt))
		}
		return all, nil
	}
	_, asked, err := askedOf(run)
	if err != nil {
		return nil, err
	}
	if _, s := split(asked.System, run.Metadata); s != "" {
		message(roleSystem, text(s))
	}
	for _, m := range asked.Messages {
		var texts []object // of one message
		flush := func() {
			if texts != nil {
				message(m.Role, texts...)
				texts = nil
			}
		}
		for _, p := range m.Parts {
			if p.Text != "" {
				if m.Role == turn.Assistant {
					texts = append(texts, part(p.Text))
				} else {
					texts = append(texts, text(p.Text))
				}
				continue
			}
			flush()
			switch {
			case p.Call != nil:
				add("fc_", object{"type": "function_call", "call_id": p.Call.ID, "name": p.Call.Name, "arguments": p.Call.Arguments})
			case p.Result != nil:
				result(p.Result.ID, p.Result.Text)
			case p.Opaque != nil:
				o, err := wrap(p.Opaque, "")
				if err != nil {
					return nil, err
				}
				add("rs_", o)
			}
		}
		flush()
	}
	return all, nil
}
