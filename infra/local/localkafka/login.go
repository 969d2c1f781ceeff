package localkafka

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/meterplex/meterplex/infra/local/folder"
)

// User is the user of a locked broker. Its password is random, and stored beside the data.
const User = "meterplex"

// Password returns the password of User; "" if the broker is not locked.
func (k *Broker) Password() string { return k.password }

// passwords is the file of the password, as that of the embedded PostgreSQL.
type passwords struct {
	User string `json:"meterplex"`
}

func (k *Broker) passwordFile() string { return filepath.Join(k.dir, "passwords.json") }

// makeDir makes the broker's folder.
func (k *Broker) makeDir() error {
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return err
	}
	return k.closeDir(k.dir)
}

// closeDir lets nobody but its owner enter a folder of a locked broker, and the group of the broker's user if that is another one: only
// root writes to it. The folder may be open to others.
func (k *Broker) closeDir(dir string) error {
	if !k.cfg.Locked {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	mode := info.Mode() &^ 0o077
	uid, _ := folder.Owner(info)
	if k.user.Drop && uid == 0 {
		mode |= 0o010
		if err := os.Chown(dir, 0, int(k.user.GID)); err != nil {
			return err
		}
	}
	if mode == info.Mode() {
		return nil
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("%w: the user with id %d owns it, run chmod 700 %s as that user", err, uid, dir)
	}
	return nil
}

// readPassword reads the password of a locked broker, and makes it at the first start. The data are locked, so that no other process makes
// it, too.
func (k *Broker) readPassword() error {
	if !k.cfg.Locked {
		return nil
	}
	var p passwords
	b, err := os.ReadFile(k.passwordFile())
	if errors.Is(err, fs.ErrNotExist) {
		p.User = rand.Text()
		if b, err = json.Marshal(p); err == nil {
			err = folder.WriteFile(k.passwordFile(), b, 0o600)
		}
	} else if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err == nil && p.User == "" {
		err = fmt.Errorf("%s holds no password of %s: remove it", k.passwordFile(), User)
	}
	k.password = p.User
	return err
}

// login is the option of a client of the broker.
func (k *Broker) login() []kgo.Opt {
	if !k.cfg.Locked {
		return nil
	}
	return []kgo.Opt{kgo.SASL(plain.Auth{User: User, Pass: k.password}.AsMechanism())}
}
