package billing

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// exportFile names a file with an export.
type exportFile struct {
	File string `placeholder:"FILE" help:"Read an export in JSON instead of asking the service."`
}

const verifyPeriodHelp = `It computes figuresHash from the answer alone, as docs/how-to/prove-an-invoice-line.md describes. Exit code 1
if it differs. meterplex verify compares the frozen figures with the log.`

// frozenPeriod holds the members of a period that its hash is computed from.
type frozenPeriod struct {
	TenantID    string  `json:"tenantId"`
	PeriodKey   string  `json:"periodKey"`
	Snapshot    *int    `json:"snapshot"`
	CutPosition *string `json:"cutPosition"`
	Logic       *string `json:"logic"`
	FiguresHash *string `json:"figuresHash"`
	NextCursor  *string `json:"nextCursor"`
	Lines       []struct {
		Feature          string      `json:"feature"`
		SubscriptionID   string      `json:"subscriptionId"`
		Frozen           json.Number `json:"frozen"`
		FrozenEventCount int64       `json:"frozenEventCount"`
	} `json:"lines"`
}

// hash returns the SHA-256 of the figures in the form of RFC 8785. All texts are ASCII, so that encoding/json writes that form, with the
// members of a map in the order of their names.
func (p *frozenPeriod) hash() (string, error) {
	lines := []map[string]any{}
	for _, l := range p.Lines {
		if l.Frozen == "0" && l.FrozenEventCount == 0 {
			continue // a line of adjustments alone
		}
		lines = append(lines, map[string]any{"amount": l.Frozen.String(), "eventCount": l.FrozenEventCount, "feature": l.Feature,
			"subscriptionId": l.SubscriptionID})
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(map[string]any{"cut": p.CutPosition, "lines": lines, "logic": p.Logic, "periodKey": p.PeriodKey,
		"snapshot": p.Snapshot, "tenantId": p.TenantID})
	sum := sha256.Sum256(bytes.TrimSuffix(text.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:]), err
}

// verifyPeriod prints both hashes.
func verifyPeriod(a *app.App, l *app.Call) error {
	raw, err := readExport(a, l)
	if err != nil {
		return err
	}
	var p frozenPeriod
	period, tenant, snapshot := l.Last(), *app.FlagOf[*string](l, "InTenantId"), app.FlagOf[*int64](l, "InSnapshot")
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("read the period: %w", err)
	}
	switch {
	case p.FiguresHash == nil:
		a.Report("The period %s has no frozen figures.", period)
		return app.ErrNo
	case p.NextCursor != nil:
		return errors.New("the file holds only a page of the lines: export the period")
	case p.TenantID != tenant || p.PeriodKey != period || snapshot != nil && int64(*p.Snapshot) != *snapshot:
		return fmt.Errorf("the file is of tenant %s, period %s, snapshot %d", p.TenantID, p.PeriodKey, *p.Snapshot)
	}
	computed, err := p.hash()
	if err != nil {
		return err
	}
	result, err := json.Marshal(struct {
		PeriodKey   string `json:"periodKey"`
		Snapshot    int    `json:"snapshot"`
		FiguresHash string `json:"figuresHash"`
		Computed    string `json:"computed"`
		Holds       bool   `json:"holds"`
	}{p.PeriodKey, *p.Snapshot, *p.FiguresHash, computed, computed == *p.FiguresHash})
	if err != nil {
		return err
	}
	if err := a.Object(result); err != nil {
		return err
	}
	if computed != *p.FiguresHash {
		return app.ErrNo
	}
	return nil
}

func readExport(a *app.App, l *app.Call) (json.RawMessage, error) {
	if file := app.FlagOf[exportFile](l, "Own").File; file != "" {
		return os.ReadFile(file)
	}
	return l.Send(a)
}
