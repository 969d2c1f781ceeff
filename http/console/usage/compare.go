package usage

import (
	"encoding/json"
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

// comparison is a figure at two moments. An absent figure is zero.
type comparison struct {
	Of            map[string]any // a figure: its tenant, feature, period and subscription
	First, Second json.Number
	Difference    string
}

// compared joins the figures of two answers. complete is unset if one of them has more pages: a figure that is missing on one page may be
// on another, so only figures of both are compared.
func compared(first, second console.Doc) console.Doc {
	if first["problem"] != nil || second["problem"] != nil {
		return nil
	}
	complete := console.Text(first["nextCursor"]) == "" && console.Text(second["nextCursor"]) == ""
	at := map[string]*comparison{}
	var joined []*comparison
	for i, answer := range []console.Doc{first, second} {
		for _, entry := range console.Items(answer["data"]) {
			figure, _ := entry.(map[string]any)
			key := strings.Join(console.Texts([]any{figure["tenantId"], figure["feature"], figure["periodKey"], figure["subscriptionId"]}),
				"\n")
			if at[key] == nil {
				at[key] = &comparison{Of: figure}
				joined = append(joined, at[key])
			}
			amount := json.Number(console.Text(figure["amount"]))
			if i == 0 {
				at[key].First = amount
			} else {
				at[key].Second = amount
			}
		}
	}
	var shown []any
	for _, c := range joined {
		if !complete && (c.First == "" || c.Second == "") {
			continue
		}
		first, second := console.Integer(c.First), console.Integer(c.Second)
		c.First, c.Second = json.Number(first.String()), json.Number(second.String())
		if c.Difference = second.Sub(second, first).String(); second.Sign() > 0 {
			c.Difference = "+" + c.Difference
		}
		shown = append(shown, c)
	}
	return console.Doc{"data": shown, "complete": complete}
}
