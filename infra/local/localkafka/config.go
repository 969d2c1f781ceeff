package localkafka

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// brokerPorts are a broker's ports: for clients, as a controller, for clients with a password, and for clients with a
// certificate.
type brokerPorts struct{ broker, controller, secured, certified int }

// serverProperties has verbs for the two ports, the data folder, the node id, the controllers, the
// replication factor and the minimum of in-sync replicas. The data folder is relative to the broker's
// working directory, because a properties file gives commas, backslashes and non-ASCII letters of a path
// another meaning. Internal topics have few partitions, since few nodes serve them. Segments and indexes
// are smaller than usual: each partition maps its indexes completely, and recovery after a kill reads the
// last segment. Heartbeats are short, so that a killed broker can join again after 2 s. JMX has no metrics of
// Kafka: each partition would register a dozen. The controller writes no records without content: they only show
// in metrics that it is alive.
const serverProperties = `process.roles=broker,controller
node.id=%[4]d
controller.quorum.voters=%[5]s
listeners=BROKER://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=BROKER://127.0.0.1:%[1]d
controller.listener.names=CONTROLLER
inter.broker.listener.name=BROKER
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=%[3]s
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=%[6]d
min.insync.replicas=%[7]d
offsets.topic.replication.factor=%[6]d
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=%[6]d
transaction.state.log.min.isr=%[7]d
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=%[6]d
share.coordinator.state.topic.min.isr=%[7]d
share.coordinator.state.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
message.max.bytes=8388608
log.segment.bytes=268435456
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=4194304
num.network.threads=2
metadata.max.idle.interval.ms=0
metric.reporters=
metrics.jmx.exclude=.*
num.io.threads=4
`

// lockedProperties follows serverProperties, whose values of the same names it replaces. It has a verb for the password, which is of
// letters and digits.
const lockedProperties = `listener.security.protocol.map=BROKER:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.broker.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="` + User +
	`" password="%[1]s" user_` + User + `="%[1]s";
listener.name.controller.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="` + User +
	`" password="%[1]s" user_` + User + `="%[1]s";
`

// securedProperties follows serverProperties, whose values of the same names it replaces. It has verbs for the three
// ports and the users.
const securedProperties = `listeners=BROKER://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d,USERS://127.0.0.1:%[3]d
advertised.listeners=BROKER://127.0.0.1:%[1]d,USERS://127.0.0.1:%[3]d
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
sasl.enabled.mechanisms=PLAIN
listener.name.users.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required%[4]s;
`

// tlsProperties follows securedProperties, whose values of the same names it replaces. It has verbs for the four ports. The
// name of a user with a certificate is the name (CN) in it. The last verb is TLS.LogInAgain in milliseconds.
const tlsProperties = `listeners=BROKER://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d,USERS://127.0.0.1:%[3]d,CERTIFIED://127.0.0.1:%[4]d
advertised.listeners=BROKER://127.0.0.1:%[1]d,USERS://127.0.0.1:%[3]d,CERTIFIED://127.0.0.1:%[4]d
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_SSL,CERTIFIED:SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.users.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.users.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
connections.max.reauth.ms=%[5]d
ssl.keystore.type=PEM
ssl.keystore.location=` + keystoreName + `
ssl.truststore.type=PEM
ssl.truststore.location=` + truststoreName + `
ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT
listener.name.certified.ssl.client.auth=required
`

const log4jConfig = `status=error
name=meterplex
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
`

// The broker's files, relative to its working directory.
const (
	dataName       = "data"
	propertiesName = "server.properties"
	log4jName      = "log4j2.properties"
	keystoreName   = "keystore.pem"
	truststoreName = "truststore.pem"
)

func (k *Broker) logFile() string { return filepath.Join(k.dir, "kafka.log") }

func (k *Broker) writeConfig(ports brokerPorts) error {
	err := errors.Join(k.write(log4jName, []byte(log4jConfig)), k.write(propertiesName, k.properties(ports, dataName)))
	if t := k.cfg.TLS; t != nil {
		err = errors.Join(err, k.write(keystoreName, []byte(t.Key+t.Certificate)), k.write(truststoreName, []byte(t.ClientCA)))
	}
	return err
}

// write writes a file that only the broker's user reads.
func (k *Broker) write(name string, content []byte) error {
	path := filepath.Join(k.home, name)
	if err := folder.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return k.user.Chown(path)
}

func (k *Broker) properties(ports brokerPorts, data string) []byte {
	quorum := k.quorum()
	controllers := quorum.Controllers
	if controllers == nil {
		controllers = []int{ports.controller}
	}
	var voters []string
	for i, port := range controllers {
		voters = append(voters, fmt.Sprintf("%d@%s", i+1, child.Address(port)))
	}
	copies := min(len(controllers), 3)
	all := fmt.Appendf(nil, serverProperties, ports.broker, ports.controller, data, quorum.Node, strings.Join(voters, ","), copies,
		(copies+1)/2)
	if k.cfg.Locked {
		return fmt.Appendf(all, lockedProperties, k.password)
	}
	if len(k.cfg.Users) == 0 {
		return all
	}
	users := ""
	for _, name := range slices.Sorted(maps.Keys(k.cfg.Users)) {
		users += fmt.Sprintf(" user_%s=%q", name, k.cfg.Users[name])
	}
	all = fmt.Appendf(all, securedProperties, ports.broker, ports.controller, ports.secured, users)
	if k.cfg.TLS == nil {
		return all
	}
	return fmt.Appendf(all, tlsProperties, ports.broker, ports.controller, ports.secured, ports.certified,
		cmp.Or(k.cfg.TLS.LogInAgain, 2*time.Second).Milliseconds())
}

// quorum returns how the broker joins others; a broker alone has no controllers and no id.
func (k *Broker) quorum() Quorum {
	if k.cfg.Quorum == nil {
		return Quorum{Node: 1}
	}
	return *k.cfg.Quorum
}

// ClusterID returns a random id in the format of Kafka's tools: 22 characters of URL-safe base64. It does
// not begin with a dash, which would make it an option.
func ClusterID() string {
	b := make([]byte, 16)
	rand.Read(b)
	b[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(b)
}

func (k *Broker) portFile() string { return filepath.Join(k.dir, "port") }

// choosePorts chooses the ports that are 0.
func (k *Broker) choosePorts(ports brokerPorts) (brokerPorts, error) {
	var err error
	if ports.broker == 0 {
		if ports.broker, err = child.RememberedPort(k.portFile()); err != nil {
			return ports, err
		}
	}
	for ports.controller == 0 || ports.controller == ports.broker {
		if ports.controller, err = child.FreePort(); err != nil {
			return ports, err
		}
	}
	for len(k.cfg.Users) > 0 && (ports.secured == 0 || ports.secured == ports.broker || ports.secured == ports.controller) {
		if ports.secured, err = child.FreePort(); err != nil {
			return ports, err
		}
	}
	taken := []int{0, ports.broker, ports.controller, ports.secured}
	for k.cfg.TLS != nil && slices.Contains(taken, ports.certified) {
		if ports.certified, err = child.FreePort(); err != nil {
			return ports, err
		}
	}
	return ports, nil
}
