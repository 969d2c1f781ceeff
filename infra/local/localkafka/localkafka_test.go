package localkafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
	"github.com/meterplex/meterplex/internal/childtest"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func startKafka(t *testing.T, cfg Config) *Broker {
	t.Helper()
	k, err := Start(t.Context(), cfg)
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, k.Stop(context.Background())) })
	return k
}

func client(t *testing.T, k *Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(append(opts, k.login()...), kgo.SeedBrokers(k.Brokers()...))...)
	must.OK(t, err)
	t.Cleanup(c.Close)
	return c
}

func produce(t *testing.T, k *Broker, topic, value string) {
	t.Helper()
	c := client(t, k)
	defer c.Close()
	must.OK(t, c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
}

// consume reads the first n values of a topic.
func consume(t *testing.T, k *Broker, topic string, n int) (values []string) {
	t.Helper()
	c := client(t, k, kgo.ConsumeTopics(topic))
	defer c.Close()
	for len(values) < n {
		fetches := c.PollFetches(t.Context())
		must.OK(t, fetches.Err())
		for r := range fetches.RecordsAll() {
			values = append(values, string(r.Value))
		}
	}
	return values
}

// A broker that root starts runs as the user of the database, also on the data of an earlier release, whose brokers ran as root.
func TestKafkaKeepsItsDataAcrossKillsAndStops(t *testing.T) {
	root := os.Geteuid() == 0
	t.Setenv("METERPLEX_BOOTSTRAP_OPERATOR_KEY", secret)
	// Properties files and path lists would give this name another meaning.
	dir := filepath.Join(localtest.Folder(t), `a b,c\d=é%20`)
	must.OK(t, os.MkdirAll(filepath.Join(dir, "kafka"), 0o755)) // open to others
	k := startKafka(t, Config{DataDir: dir, Locked: true})
	requireLock(t, k)
	if root {
		requireUser(t, k, account.OfServers())
	}
	brokers := k.Brokers()[0]
	_, err := kadm.NewClient(client(t, k)).CreateTopic(t.Context(), 1, 1, nil, "kept")
	must.OK(t, err)
	kills := tier.Draws(t, 1, 2)
	for i := range kills {
		produce(t, k, "kept", fmt.Sprint(i))
		killed := k.PID()
		must.OK(t, k.Kill())
		childtest.AwaitExit(t, killed)
		must.OK(t, k.Restart(t.Context()))
		if k.Brokers()[0] != brokers || k.PID() == killed {
			t.Fatalf("%v, process %d; before %s, %d", k.Brokers(), k.PID(), brokers, killed)
		}
		if got := consume(t, k, "kept", i+1); len(got) != i+1 || got[i] != fmt.Sprint(i) {
			t.Fatalf("after kill %d: %v", i, got)
		}
	}
	must.OK(t, k.Stop(t.Context()))
	must.OK(t, k.Stop(t.Context()))
	if root {
		asOfRoot(t, k.dir)
	}
	k = startKafka(t, Config{DataDir: dir, Locked: true})
	if root {
		requireUser(t, k, account.OfServers())
	}
	if got := consume(t, k, "kept", kills); len(got) != kills {
		t.Errorf("after the stop: %v", got)
	}
	_, err = Start(t.Context(), Config{DataDir: dir})
	if !errors.Is(err, folder.ErrInUse) {
		t.Errorf("%v, want ErrInUse", err)
	}
	childtest.ErrorContains(t, err, fmt.Sprintf("process %d ", os.Getpid()))
}

// requireLock requires that a broker refuses clients without the password, on both of its ports, and that no other user reads its files.
func requireLock(t *testing.T, k *Broker) {
	t.Helper()
	for _, port := range []int{k.ports.broker, k.ports.controller} {
		for name, login := range map[string][]kgo.Opt{"no": nil,
			"a wrong": {kgo.SASL(plain.Auth{User: User, Pass: k.password[1:]}.AsMechanism())}} {
			c, err := kgo.NewClient(append(login, kgo.SeedBrokers(child.Address(port)), kgo.RequestRetries(0))...)
			must.OK(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := c.Ping(ctx); err == nil {
				t.Errorf("port %d accepts %s password", port, name)
			}
			cancel()
			c.Close()
		}
	}
	closed := os.FileMode(0o700)
	if k.user.Drop {
		closed = 0o710 // for the group of the broker's user
	}
	for path, want := range map[string]os.FileMode{k.dir: closed, k.Dir(): 0o700, k.passwordFile(): 0o600,
		filepath.Join(k.dir, propertiesName): 0o600} {
		info, err := os.Stat(path)
		must.OK(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has the mode %o, want %o", path, got, want)
		}
	}
}

// TestTheLockDecidesWhoMakesThePassword: of two first starts at once, one makes it. A folder that is closed to others keeps its mode.
func TestTheLockDecidesWhoMakesThePassword(t *testing.T) {
	k := newBroker(Config{DataDir: t.TempDir(), Locked: true})
	mode := os.ModeDir | os.ModeSetgid | 0o700
	must.OK(t, errors.Join(os.Mkdir(k.dir, 0o700), os.Chmod(k.dir, mode)))
	lock, err := folder.TryLock(filepath.Join(k.dir, "lock"))
	must.OK(t, err)
	defer lock.Release()
	if err := k.start(t.Context(), brokerPorts{}); !errors.Is(err, folder.ErrInUse) || k.password != "" || folder.Exists(k.passwordFile()) {
		t.Errorf("beside another start: %v, and a password of %d characters", err, len(k.password))
	}
	info, err := os.Stat(k.dir)
	must.OK(t, err)
	if k.user.Drop {
		mode |= 0o010
	}
	if info.Mode() != mode {
		t.Errorf("the folder's mode is %s, want %s", info.Mode(), mode)
	}
}

func TestKafkaWithoutItsDataStartsEmpty(t *testing.T) {
	tier.AtSize(t)
	port, err := child.FreePort()
	must.OK(t, err)
	k := startKafka(t, Config{DataDir: localtest.Folder(t), Port: port})
	if k.Brokers()[0] != child.Address(port) {
		t.Errorf("%v, want port %d", k.Brokers(), port)
	}
	_, err = kadm.NewClient(client(t, k)).CreateTopic(t.Context(), 1, 1, nil, "lost")
	must.OK(t, err)
	must.OK(t, k.Kill())
	must.OK(t, os.RemoveAll(k.Dir()))
	must.OK(t, k.Restart(t.Context()))
	must.OK(t, k.exercise(t.Context()))
	admin := kadm.NewClient(client(t, k))
	topics, err := admin.ListTopics(t.Context())
	must.OK(t, err)
	groups, err := admin.ListGroups(t.Context())
	must.OK(t, err)
	if len(topics) != 0 || len(groups) != 0 {
		t.Errorf("topics %v, groups %v", topics.Names(), groups.Groups())
	}
	must.OK(t, k.Kill())
	must.OK(t, os.Remove(filepath.Join(k.Dir(), "meta.properties")))
	childtest.ErrorContains(t, k.Restart(t.Context()), "meta.properties")
}

// A broker's data directory is made as Kafka's tool made an earlier one.
func TestKafkaFormatsAsItsTool(t *testing.T) {
	tier.AtSize(t)
	k := newBroker(Config{DataDir: localtest.Folder(t)})
	k.user = account.OfServers()
	k.java, k.jars = installed(t)
	k.program = t.TempDir()
	must.OK(t, os.Mkdir(k.dir, 0o755))
	copied := filepath.Join(k.dir, "copied")
	childtest.ErrorContains(t, k.copyFormat(copied), "no such file") // no broker was formatted yet
	must.OK(t, k.formatByTool(t.Context(), brokerPorts{broker: 1, controller: 2}, "made"))
	must.OK(t, k.copyFormat(copied))
	if made, copied := names(t, filepath.Join(k.dir, "made")), names(t, copied); !slices.Equal(made, copied) {
		t.Errorf("the copy has %v, not %v", copied, made)
	}
	for _, name := range []string{"made", "copied"} {
		meta, err := os.ReadFile(filepath.Join(k.dir, name, metaName))
		must.OK(t, err)
		if keys := regexp.MustCompile(`(?m)^(version=1|cluster\.id=.{22}|directory\.id=.{22}|node\.id=1)$`).FindAll(meta,
			-1); len(keys) != 4 {
			t.Errorf("%s in %s has\n%s", metaName, name, meta)
		}
	}
	made, err := os.ReadFile(filepath.Join(k.dir, "made", checkpointName))
	must.OK(t, err)
	if same, err := os.ReadFile(filepath.Join(copied, checkpointName)); err != nil || !bytes.Equal(made, same) {
		t.Errorf("another %s: %v", checkpointName, err)
	}
	kept, err := os.ReadFile(k.checkpointFile())
	must.OK(t, err)
	kept[len(kept)-1]++
	must.OK(t, os.WriteFile(k.checkpointFile(), kept, 0o644))
	must.OK(t, os.RemoveAll(copied))
	childtest.ErrorContains(t, k.copyFormat(copied), "checksums")
}

// installed returns the runtime and Kafka's jars.
func installed(t *testing.T) (java, []string) {
	t.Helper()
	program, err := programDir(download.CacheDir(), account.OfServers())
	must.OK(t, err)
	jars, err := install(t.Context(), program, download.CacheDir(), io.Discard)
	must.OK(t, err)
	runtime, err := findJava(t.Context(), account.OfServers())
	must.OK(t, err)
	return runtime, jars
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.OK(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// A damaged class archive crashes Java (SIGBUS, if it is shorter than its header says). Here a wrapper of
// Java crashes whenever it gets an archive.
func TestKafkaSurvivesADamagedClassArchive(t *testing.T) {
	tier.AtSize(t)
	_, jars := installed(t)
	real, err := exec.LookPath("java")
	must.OK(t, err)
	home, cache := localtest.Folder(t), localtest.Folder(t)
	must.OK(t, os.Mkdir(filepath.Join(home, "bin"), 0o755))
	script := "#!/bin/sh\ncase \"$*\" in *-XX:SharedArchiveFile*) kill -BUS $$;; esac\nexec " + real + " \"$@\"\n"
	must.OK(t, os.WriteFile(filepath.Join(home, "bin", "java"), []byte(script), 0o755))
	t.Setenv("JAVA_HOME", home)
	runtime, err := findJava(t.Context(), account.OfServers())
	must.OK(t, err)
	program, err := programDir(cache, account.OfServers())
	must.OK(t, err)
	must.OK(t, os.Symlink(filepath.Dir(jars[0]), jarDir(program)))
	damaged := (&Broker{program: program, java: runtime, user: account.OfServers()}).archiveFile()
	dir := localtest.Folder(t)
	for range 2 { // the first start crashes while formatting, the second in the broker
		must.OK(t, os.WriteFile(damaged, []byte("damaged"), 0o644))
		k := startKafka(t, Config{DataDir: dir, CacheDir: cache})
		if k.archive == "" {
			t.Error("the broker uses the damaged archive and writes no new one")
		}
		must.OK(t, k.Kill())
		must.OK(t, k.Stop(t.Context()))
	}
}

// Only a crash of Java is a reason to remove the class archive: Kafka ends by itself with a code.
func TestExitCodesAreNoCrashesOfJava(t *testing.T) {
	for script, crash := range map[string]bool{"exit 1": false, "kill -KILL $$": false, "kill -TERM $$": false, "kill -BUS $$": true,
		"kill -ABRT $$": true} {
		if _, err := child.Run(t.Context(), nil, "/", nil, "/bin/sh", "-c", script); crashOfJava(err) != crash {
			t.Errorf("%s: %v is a crash of Java: %v", script, err, !crash)
		}
	}
}

func TestJarsMustBeThePinnedOnes(t *testing.T) {
	lib := t.TempDir()
	write := func(name, content string) { must.OK(t, os.WriteFile(filepath.Join(lib, name), []byte(content), 0o644)) }
	write("a.jar", "a")
	sum, err := download.SHA256(filepath.Join(lib, "a.jar"))
	must.OK(t, err)
	write("b.jar", "b")
	other, err := download.SHA256(filepath.Join(lib, "b.jar"))
	must.OK(t, err)
	pinned := sum + "  org/a/1/a.jar\n" + other + "  org/b/1/b.jar\n"
	refused := func(change, jar string) {
		t.Helper()
		if _, err := checkJars(lib, pinned); !errors.Is(err, download.ErrChanged) || !strings.Contains(err.Error(), jar) {
			t.Errorf("%s: %v", change, err)
		}
	}
	jars, err := checkJars(lib, pinned)
	must.OK(t, err)
	if len(jars) != 2 || path.Base(jars[0]) != "a.jar" {
		t.Errorf("%v", jars)
	}
	write("c.jar", "c")
	refused("one more", "c.jar")
	must.OK(t, os.Remove(filepath.Join(lib, "c.jar")))
	write("b.jar", "B")
	refused("changed", "b.jar")
	must.OK(t, os.Remove(filepath.Join(lib, "b.jar")))
	refused("missing", "b.jar")
}

func TestKafkaRefusesChangedJars(t *testing.T) {
	cache := localtest.Folder(t)
	program, err := programDir(cache, account.OfServers())
	must.OK(t, err)
	must.OK(t, os.Mkdir(jarDir(program), 0o755))
	_, err = Start(t.Context(), Config{DataDir: localtest.Folder(t), CacheDir: cache})
	if !errors.Is(err, download.ErrChanged) {
		t.Errorf("%v, want ErrChanged", err)
	}
}

func TestKafkaNamesTheMissingProgram(t *testing.T) {
	java, err := exec.LookPath("java")
	must.OK(t, err)
	path := localtest.Folder(t)
	t.Setenv("PATH", path)
	t.Setenv("JAVA_HOME", "")
	t.Setenv("METERPLEX_CACHE_DIR", localtest.Folder(t))
	missing := func(want error, words ...string) {
		t.Helper()
		_, err := Start(t.Context(), Config{DataDir: t.TempDir()})
		for _, err := range []error{Available(), err} {
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			childtest.ErrorContains(t, err, words...)
		}
	}
	missing(ErrNoJava, "install")
	old := "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"
	must.OK(t, os.WriteFile(filepath.Join(path, "java"), []byte(old), 0o755))
	missing(ErrNoJava, "Java 11")
	must.OK(t, os.Remove(filepath.Join(path, "java")))
	must.OK(t, os.Symlink(java, filepath.Join(path, "java")))
	missing(download.ErrNoMaven, "install")
}

func TestJavaVersions(t *testing.T) {
	for output, want := range map[string]int{
		"openjdk version \"17.0.15\" 2025-04-15\n":                        17,
		"Picked up JAVA_TOOL_OPTIONS: -Xmx9m\njava version \"1.8.0_202\"": 1,
		"openjdk version \"25-ea\" 2025-09-16":                            25,
		"openjdk version \"21\" 2023-09-19":                               21,
		"no version":                                                      0,
	} {
		if got := javaMajor(output); got != want {
			t.Errorf("%q: %d, want %d", output, got, want)
		}
	}
}

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }
