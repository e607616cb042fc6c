# Strings, hashes, closures, regular expressions, sorting, fork and pipes.
use strict;
use warnings;
$| = 1;

my %table;
for my $i (1 .. 60000) {
    my $key = ($i * 7919) % 10007;
    $table{"key $key"} .= chr(97 + $i % 26);
    push @{ $table{list} ||= [] }, { number => $i, text => 'x' x ($i % 50) } if ref($table{list} // []);
}
my $sum = 0;
$sum += length $table{$_} for grep { !/list/ } keys %table;
print "$sum ", scalar(keys %table), ' ', scalar(@{ $table{list} }), "\n";

my @sorted = sort { $b->{text} cmp $a->{text} || $a->{number} <=> $b->{number} } @{ $table{list} };
print join(',', map { $_->{number} } @sorted[ 0 .. 20 ]), "\n";

my $text = join ' ', map { "word$_" . ('ab' x ($_ % 7)) } 1 .. 40000;
my $count = () = $text =~ /\bword\d*7(?:ab)+\b/g;
(my $changed = $text) =~ s/(\d+)/<$1>/g;
print "$count ", length($changed), ' ', unpack('%32C*', $changed), "\n";

my @closures = map { my $n = $_; sub { $n += shift; $n } } 1 .. 10000;
my $total = 0;
$total += $_->(5) for @closures, @closures;
print "$total\n";

for my $child (1 .. 10) {
    my $pid = open(my $pipe, '-|') // die "fork: $!";
    if (!$pid) {
        my @data = map { [ $_, "$child-$_" ] } 1 .. 2000;
        print join(',', map { $_->[1] } @data[ 0, 999, 1999 ]), "\n";
        exit 0;
    }
    print <$pipe>;
    close $pipe;
}

my $grown = '';
$grown .= pack('N', $_) for 1 .. 300000;
print length($grown), ' ', unpack('%32C*', $grown), "\n";
print scalar(`echo from a shell`);
