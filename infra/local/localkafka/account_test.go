package localkafka

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func asRoot(t *testing.T) account.Account {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("requires root")
	}
	return account.OfServers()
}

// requireUser requires that a broker runs as a user and in no group of this process, that its files are the user's alone, and that its
// environment has no secret of this process.
func requireUser(t *testing.T, k *Broker, user account.Account) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.PID()))
	must.OK(t, err)
	for _, line := range []string{fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", user.UID), fmt.Sprintf("Gid:\t%d\t%[1]d\t%[1]d\t%[1]d\n",
		user.GID), "Groups:\t \n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the process lacks %q:\n%s", line, status)
		}
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", k.PID()))
	must.OK(t, err)
	if strings.Contains(string(environment), secret) {
		t.Error("a secret of this process is in the broker's environment")
	}
	requireOwner(t, filepath.Join(k.home, propertiesName), user, 0o600)
	requireOwner(t, filepath.Join(k.home, log4jName), user, 0o600)
	requireOwner(t, k.Dir(), user, 0o700)
	must.OK(t, filepath.WalkDir(k.Dir(), func(path string, _ fs.DirEntry, err error) error {
		if info, err := os.Lstat(path); err == nil { // Kafka removes files meanwhile
			if uid, gid := folder.Owner(info); uid != user.UID || gid != user.GID {
				t.Errorf("%s belongs to user %d and group %d", path, uid, gid)
			}
		}
		return nil
	}))
	requireOwner(t, k.passwordFile(), account.Account{}, 0o600)
}

func requireOwner(t *testing.T, path string, user account.Account, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	must.OK(t, err)
	if uid, gid := folder.Owner(info); uid != user.UID || gid != user.GID || info.Mode().Perm() != mode {
		t.Errorf("%s has the mode %o and belongs to user %d and group %d, want %o, %d and %d", path, info.Mode().Perm(), uid, gid, mode,
			user.UID, user.GID)
	}
}

const secret = "canary-secret-of-the-service"

// asOfRoot gives a folder to root.
func asOfRoot(t *testing.T, dir string) {
	t.Helper()
	must.OK(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		must.OK(t, err)
		return os.Lchown(path, 0, 0)
	}))
	must.OK(t, os.Chmod(filepath.Join(dir, dataName), 0o755))
	must.OK(t, os.Chmod(dir, 0o700))
}

// Below a folder that only root enters, as /root, the broker's files are elsewhere, also those that were there before.
func TestKafkaOfRootInAnInaccessibleFolder(t *testing.T) {
	tier.AtSize(t)
	user := asRoot(t)
	open := localtest.Folder(t)
	k := startKafka(t, Config{DataDir: open, Locked: true})
	_, err := kadm.NewClient(client(t, k)).CreateTopic(t.Context(), 1, 1, nil, "kept")
	must.OK(t, err)
	produce(t, k, "kept", "value")
	must.OK(t, k.Stop(t.Context()))
	asOfRoot(t, k.dir)
	must.OK(t, os.Chmod(open, 0o700))

	var log strings.Builder
	k = startKafka(t, Config{DataDir: open, Locked: true, Log: &log})
	home := k.home
	t.Cleanup(func() { must.OK(t, os.RemoveAll(home)) })
	if strings.HasPrefix(home, open) || !strings.Contains(log.String(), home) {
		t.Errorf("files in %s; log %q", home, log.String())
	}
	for range 2 {
		requireUser(t, k, user)
		if got := consume(t, k, "kept", 1); got[0] != "value" {
			t.Errorf("%v", got)
		}
		must.OK(t, k.Stop(t.Context()))
		k = startKafka(t, Config{DataDir: open, Locked: true})
		if k.home != home {
			t.Errorf("files in %s, before in %s", k.home, home)
		}
	}
	must.OK(t, k.Stop(t.Context()))

	// The remedy for damaged data: a broker without data.
	must.OK(t, os.Rename(k.dir, k.dir+".damaged"))
	k = startKafka(t, Config{DataDir: open, Locked: true})
	empty := k.home
	t.Cleanup(func() { must.OK(t, os.RemoveAll(empty)) })
	topics, err := kadm.NewClient(client(t, k)).ListTopics(t.Context())
	must.OK(t, err)
	if len(topics) != 0 || empty == home {
		t.Errorf("topics %v in %s", topics.Names(), empty)
	}
	must.OK(t, k.Stop(t.Context()))
}
